//! Checks dpl sidecars, data included, and prints what ../cpp/digests.cpp prints.
//!
//!     rustc -O --edition 2021 -D warnings digests.rs && ./digests MODEL.dpl ...
//!
//! Exits with 3 if a file is refused or damaged; the reason goes to stderr.

use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

// An engine uses more of the reader than this program.
#[allow(dead_code)]
mod dpl;
mod json;
mod layout;
mod sha256;
use dpl::{Sidecar, Tensor};
use json::{require, Refused};
use sha256::Sha256;

/// C15 to C17; returns the digests of the tensor's bytes and of its bytes brought back to the GGUF's order. The second
/// stands nowhere in the file: compare it with that of the GGUF's own bytes.
fn check_data(sidecar: &Sidecar, t: &Tensor) -> Result<(String, String), Refused> {
    let (mut own, mut back, mut bad, mut zero) = (Sha256::new(), Sha256::new(), 0, 0);
    for r in 0..if t.n > 0 { t.rows } else { 0 } {
        let row = sidecar.row(t, r)?;
        for (k, field) in t.layout.planes.iter().enumerate() {
            let plane = t.plane(&row, k)?;
            let end = t.layout.start(k, t.n)? as usize + plane.len();
            let next = t.layout.start(k + 1, t.n)? as usize;
            require(row[end..next].iter().all(|&byte| byte == 0), "C16: padding is not zero")?;
            match field.name.as_str() {
                "e" => bad += plane.iter().filter(|&&byte| byte == 255).count() as u64,
                "d" | "dm" => {
                    for half in plane.chunks_exact(2) {
                        let magnitude = u16::from_le_bytes([half[0], half[1]]) & 0x7fff;
                        bad += u64::from(magnitude >= 0x7c00);
                        zero += u64::from(magnitude == 0);
                    }
                }
                _ => (),
            }
        }
        own.update(&row);
        back.update(&t.native(&row)?);
    }
    let (own, back) = (own.hex(), back.hex());
    require(own == t.sha256, "C15: the bytes are not those of the manifest")?;
    let known = layout::known_type(t.layout.number).is_some();
    require(!known || t.unusual_scales == Some((bad, zero)), "C17: counts of scales")?;
    Ok((own, back))
}

fn report(path: &Path, out: &mut impl Write) -> Result<(), Refused> {
    let sidecar = Sidecar::open(path)?;
    for t in &sidecar.tensors {
        let (own, back) = check_data(&sidecar, t)?;
        writeln!(out, "{own} {back} {} {} {} {}", t.layout.number, t.rows, t.row_stride, t.literal)?;
    }
    out.write_all(path.as_os_str().as_bytes())?;
    writeln!(out, ": ok, {} tensors", sidecar.tensors.len())?;
    Ok(())
}

fn main() -> std::io::Result<()> {
    let (mut code, mut out) = (0, std::io::stdout().lock());
    for path in std::env::args_os().skip(1) {
        if let Err(Refused(why)) = report(Path::new(&path), &mut out) {
            out.write_all(path.as_bytes())?;
            writeln!(out, ": refused")?;
            eprintln!("{}: {why}", path.to_string_lossy());
            code = 3;
        }
    }
    out.flush()?;
    std::process::exit(code);
}
