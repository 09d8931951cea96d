// The few calls of the CUDA runtime that docs/consumers/cpp/launch.cu makes, on plain memory; see on_host.h.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "on_host.h"

enum cudaError_t { cudaSuccess };
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost };

static cudaError_t cudaMalloc(void** p, size_t bytes) {
    *p = aligned_alloc(256, (bytes + 255) / 256 * 256);
    return cudaSuccess;
}
static void cudaFree(void* p) { free(p); }
static cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
    memcpy(to, from, bytes);
    return cudaSuccess;
}
static cudaError_t cudaGetLastError() { return cudaSuccess; }
static const char* cudaGetErrorString(cudaError_t) { return ""; }
