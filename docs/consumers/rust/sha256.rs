//! SHA-256 (FIPS 180-4) in pieces, for dpl.rs. With the crate `sha2` at hand, use that.

const K: [u32; 64] = [
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98,
    0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786,
    0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8,
    0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13,
    0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819,
    0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a,
    0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
    0xc67178f2,
];

pub struct Sha256 {
    state: [u32; 8],
    open: Vec<u8>,
    size: u64,
}

impl Sha256 {
    pub fn new() -> Self {
        let state = [0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19];
        Sha256 { state, open: Vec::new(), size: 0 }
    }

    /// The digest of `data` in lower-case hexadecimal.
    pub fn of(data: &[u8]) -> String {
        let mut digest = Self::new();
        digest.update(data);
        digest.hex()
    }

    pub fn update(&mut self, data: &[u8]) {
        self.size += data.len() as u64;
        self.open.extend_from_slice(data);
        let open = std::mem::take(&mut self.open);
        let blocks = open.chunks_exact(64);
        self.open = blocks.remainder().to_vec();
        blocks.for_each(|block| self.block(block));
    }

    pub fn hex(mut self) -> String {
        let bits = self.size * 8;
        let zeros = (119 - self.open.len()) % 64;
        self.update(&[&[0x80][..], &vec![0; zeros], &bits.to_be_bytes()].concat());
        self.state.iter().map(|word| format!("{word:08x}")).collect()
    }

    fn block(&mut self, block: &[u8]) {
        let mut w = [0u32; 64];
        for (word, bytes) in w.iter_mut().zip(block.chunks(4)) {
            *word = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        for i in 16..64 {
            let low = w[i - 15].rotate_right(7) ^ w[i - 15].rotate_right(18) ^ w[i - 15] >> 3;
            let high = w[i - 2].rotate_right(17) ^ w[i - 2].rotate_right(19) ^ w[i - 2] >> 10;
            w[i] = w[i - 16].wrapping_add(low).wrapping_add(w[i - 7]).wrapping_add(high);
        }
        let mut s = self.state;
        for i in 0..64 {
            let sum = s[4].rotate_right(6) ^ s[4].rotate_right(11) ^ s[4].rotate_right(25);
            let choice = (s[4] & s[5]) ^ (!s[4] & s[6]);
            let a = s[7].wrapping_add(sum).wrapping_add(choice).wrapping_add(K[i]).wrapping_add(w[i]);
            let sum = s[0].rotate_right(2) ^ s[0].rotate_right(13) ^ s[0].rotate_right(22);
            let majority = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
            s = [a.wrapping_add(sum).wrapping_add(majority), s[0], s[1], s[2], s[3].wrapping_add(a), s[4], s[5], s[6]];
        }
        for (word, more) in self.state.iter_mut().zip(s) {
            *word = word.wrapping_add(more);
        }
    }
}
