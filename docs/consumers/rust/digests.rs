//! Checks dpl sidecars, data included, and prints what ../cpp/digests.cpp prints.
//!
//!     rustc -O --edition 2021 -D warnings digests.rs && ./digests MODEL.dpl ...
//!
//! Exits with 3 if a file is refused or damaged.

mod dpl;
mod json;
mod sha256;
use dpl::{native, Sidecar, Tensor};
use json::{require, Refused};
use sha256::Sha256;

/// C15 to C17; returns the digests of the tensor's bytes and of its bytes brought back to the GGUF's order. The second
/// stands nowhere in the file: compare it with that of the GGUF's own bytes.
fn check_data(sidecar: &Sidecar, t: &Tensor) -> Result<(String, String), Refused> {
    let (mut own, mut back, mut bad, mut zero, n) = (Sha256::new(), Sha256::new(), 0, 0, t.n as usize);
    for r in 0..if n > 0 { t.rows } else { 0 } {
        let row = sidecar.row(t, r)?;
        require(row[210 * n..].iter().all(|&byte| byte == 0), "C16: padding is not zero")?;
        own.update(&row);
        back.update(&native(&row, n));
        for d in row[208 * n..210 * n].chunks(2) {
            let magnitude = u16::from_le_bytes([d[0], d[1]]) & 0x7fff;
            bad += u64::from(magnitude >= 0x7c00);
            zero += u64::from(magnitude == 0);
        }
    }
    let (own, back) = (own.hex(), back.hex());
    require(own == t.sha256, "C15: the bytes are not those of the manifest")?;
    require((bad, zero) == (t.nonfinite_d, t.zero_d), "C17: counts of d")?;
    Ok((own, back))
}

fn report(path: &str) -> Result<(), Refused> {
    let sidecar = Sidecar::open(path)?;
    for tensor in &sidecar.tensors {
        let (own, back) = check_data(&sidecar, tensor)?;
        let name: String = tensor.name.chars().map(|c| if (' '..='~').contains(&c) { c } else { '?' }).collect();
        println!("{own} {back} {} {} {name}", tensor.rows, tensor.row_stride);
    }
    println!("{path}: ok, {} tensors", sidecar.tensors.len());
    Ok(())
}

fn main() {
    let mut code = 0;
    for path in std::env::args().skip(1) {
        if let Err(Refused(why)) = report(&path) {
            println!("{path}: refused, {why}");
            code = 3;
        }
    }
    std::process::exit(code);
}
