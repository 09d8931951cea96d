//! A reader of dpl sidecars, standard library only, written from docs/format.md, whose numbers (R1, C1, ...) it names.
//! With the crate `memmap2` an engine maps the file instead of reading rows; the checks stay the same.

use std::collections::HashSet;
use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::json::{require, Json, Refused};
use crate::sha256::Sha256;

/// R1, R3: a field is `.1` bytes at `.0` of a super-block; its plane is `.1 * n` bytes at `.0 * n` of a row.
pub const FIELDS: [(usize, usize); 4] = [(0, 128), (128, 64), (192, 16), (208, 2)];
const LAYOUT: &str = concat!(
    r#"{"block_bytes":210,"block_weights":256,"fields":[{"block_bytes":128,"name":"ql","plane_offset":0},"#,
    r#"{"block_bytes":64,"name":"qh","plane_offset":128},{"block_bytes":16,"name":"scales","plane_offset":192},"#,
    r#"{"block_bytes":2,"name":"d","plane_offset":208}],"row_alignment":16}"#
);
const PREFIX: &str = r#"{"__metadata__":{"dpl":"#;
const DIGEST: &str = r#""manifest_sha256":"#;

/// R14. `ne` has the row length first; `begin` counts from the beginning of the file.
#[derive(Default)]
pub struct Tensor {
    pub name: String,
    pub ne: Vec<u64>,
    pub n: u64,
    pub rows: u64,
    pub row_stride: u64,
    pub begin: u64,
    pub sha256: String,
    pub nonfinite_d: u64,
    pub zero_d: u64,
    literal: String,
}

pub struct Sidecar {
    file: File,
    pub tensors: Vec<Tensor>,
}

impl Sidecar {
    /// Opens a file and makes the checks C1 to C14.
    pub fn open(path: &str) -> Result<Sidecar, Refused> {
        let file = File::open(path)?;
        let (size, mut head) = (file.metadata()?.len(), [0; 8]);
        require(size >= 9, "C1: shorter than a header")?;
        file.read_exact_at(&mut head, 0)?;
        let length = u64::from_le_bytes(head);
        require(0 < length && length <= 1 << 25 && length <= size - 8, "C1: the header's length")?;
        require((8 + length) % 4096 == 0, "C2: where the data begins")?;
        let mut header = vec![0; length as usize];
        file.read_exact_at(&mut header, 8)?;
        let mut json = Json::new(&header);
        require(json.take(PREFIX), "C3: the header's beginning")?;
        let mut tensors = read_manifest(&json.string()?)?;
        json.expect("}")?;
        let (start, mut begin) = (8 + length, 0);
        for tensor in &mut tensors {
            let end = begin + tensor.rows * tensor.row_stride;
            require(end <= size - start, "C14: the file is cut short")?;
            let outer: Vec<u64> = if tensor.ne.len() > 1 { tensor.ne[1..].to_vec() } else { vec![1] };
            let shape: String = outer.iter().rev().map(|size| format!("{size},")).collect();
            let (name, stride) = (&tensor.literal, tensor.row_stride);
            let member =
                format!(r#",{name}:{{"dtype":"U8","shape":[{shape}{stride}],"data_offsets":[{begin},{end}]}}"#);
            require(json.take(&member), "C13: the header does not follow from the manifest")?;
            tensor.begin = start + begin;
            begin = end;
        }
        require(json.take("}"), "C13: the header does not end with the last tensor")?;
        require(json.rest().iter().all(|&byte| byte == b' '), "C13: the header is not padded with spaces")?;
        require(start + begin == size, "C14: the file goes on after the last tensor")?;
        Ok(Sidecar { file, tensors })
    }

    /// Row `r`, counted over all outer dimensions, as it stands in the file.
    pub fn row(&self, tensor: &Tensor, r: u64) -> Result<Vec<u8>, Refused> {
        let mut row = vec![0; tensor.row_stride as usize];
        self.file.read_exact_at(&mut row, tensor.begin + r * tensor.row_stride)?;
        Ok(row)
    }
}

/// A row back in the GGUF's order.
pub fn native(row: &[u8], n: usize) -> Vec<u8> {
    let mut out = vec![0; 210 * n];
    for (offset, bytes) in FIELDS {
        for i in 0..n {
            let (to, from) = (210 * i + offset, offset * n + bytes * i);
            out[to..to + bytes].copy_from_slice(&row[from..from + bytes]);
        }
    }
    out
}

fn read_manifest(text: &str) -> Result<Vec<Tensor>, Refused> {
    let mut json = Json::new(text.as_bytes());
    let (mut tensors, mut sizes, mut patterns, mut left_out) = (Vec::new(), Vec::new(), 0, HashSet::new());
    json.object(8, |json, key| {
        match key {
            "format" => json.object(3, |json, key| match key {
                "major" => require(json.integer()? == 1, "C5: another format version").map(|()| true),
                "name" => require(json.string()? == "dpl", "C5: not dpl").map(|()| true),
                "minor" => json.integer().map(|_| true),
                _ => Ok(false),
            }),
            "generator" => json.object(2, |json, key| texts(json, &["name", "version"], key)),
            "layout" => require(json.skip(0)? == LAYOUT.as_bytes(), "C7: another layout"),
            "manifest_sha256" => {
                let mut rest = text.as_bytes()[..json.at - DIGEST.len()].to_vec();
                let digest = hex(json)?;
                rest.extend(text.as_bytes().iter().skip(json.at + 1));
                require(digest == Sha256::of(&rest), "C6: the manifest's digest")
            }
            "selection" => json.object(3, |json, key| {
                match key {
                    "exclude" | "include" => json.array(|json| json.string().map(|_| patterns += 1))?,
                    "left_out" => json.array(|json| json.string().map(|name| left_out.extend([name])))?,
                    _ => return Ok(false),
                }
                Ok(true)
            }),
            "skipped" => json.array(|json| {
                json.object(4, |json, key| match key {
                    "nbytes" if json.take("null") => Ok(true),
                    "nbytes" | "tensors" | "type" => json.integer().map(|_| true),
                    key => texts(json, &["name"], key),
                })
            }),
            "source" => json.object(2, |json, key| {
                match key {
                    "general" => json.object(0, |json, _| json.string().map(|_| true))?,
                    "shards" => json.array(|json| read_shard(json).map(|size| sizes.push(size)))?,
                    _ => return Ok(false),
                }
                Ok(true)
            }),
            "tensors" => json.array(|json| read_tensor(json, &sizes).map(|tensor| tensors.push(tensor))),
            _ => return Ok(false),
        }
        .map(|()| true)
    })?;
    require(json.rest().is_empty(), "C4: something follows the manifest")?;
    require(!tensors.is_empty(), "C8: no tensor")?;
    let mut seen = HashSet::from(["__metadata__"]);
    let fresh = tensors.iter().all(|tensor| seen.insert(&tensor.name) && !left_out.contains(&tensor.name));
    require(fresh, "C12: a name stands twice")?;
    require(left_out.is_empty() || patterns > 0, "C12: tensors are left out without a pattern")?;
    Ok(tensors)
}

fn texts(json: &mut Json, known: &[&str], key: &str) -> Result<bool, Refused> {
    if known.contains(&key) {
        json.string().map(|_| true)
    } else {
        Ok(false)
    }
}

fn hex(json: &mut Json) -> Result<String, Refused> {
    let text = json.string()?;
    let digits = text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
    require(text.len() == 64 && digits, "C8: not a SHA-256").map(|()| text)
}

fn read_shard(json: &mut Json) -> Result<u64, Refused> {
    let mut size = 0;
    json.object(3, |json, key| match key {
        "header_sha256" => hex(json).map(|_| true),
        "size" => json.integer().map(|found| size = found).map(|()| true),
        key => texts(json, &["name"], key),
    })?;
    Ok(size)
}

fn read_tensor(json: &mut Json, shards: &[u64]) -> Result<Tensor, Refused> {
    let (mut t, mut numbers) = (Tensor::default(), std::collections::HashMap::new());
    json.object(12, |json, key| {
        let begin = json.at;
        match key {
            "name" => (t.name, t.literal) = (json.string()?, json.since(begin)),
            "sha256" => t.sha256 = hex(json)?,
            "ne" => json.array(|json| json.integer().map(|size| t.ne.push(size)))?,
            "n" | "nbytes" | "nonfinite_d" | "offset" | "row_stride" | "rows" | "shard" | "type" | "zero_d" => {
                numbers.insert(key.to_string(), json.integer()?);
            }
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    let product = t.ne.iter().try_fold(1u64, |product, &size| product.checked_mul(size.max(1)));
    let small = product.map_or(false, |product| product < 1 << 63);
    require(small && (1..=4).contains(&t.ne.len()) && t.ne[0] % 256 == 0, "C9: `ne`")?;
    (t.n, t.rows) = (t.ne[0] / 256, t.ne[1..].iter().product());
    t.row_stride = (210 * t.n + 15) / 16 * 16;
    let nbytes = t.rows * t.n * 210;
    for (key, expected) in
        [("type", 14), ("rows", t.rows), ("n", t.n), ("row_stride", t.row_stride), ("nbytes", nbytes)]
    {
        require(numbers[key] == expected, "C10: a value that does not follow from `ne`")?;
    }
    let size = shards.get(usize::try_from(numbers["shard"]).unwrap_or(usize::MAX));
    require(size.is_some(), "C11: no such shard")?;
    require(nbytes == 0 || size.map_or(false, |&size| numbers["offset"] + nbytes <= size), "C11: outside its shard")?;
    (t.nonfinite_d, t.zero_d) = (numbers["nonfinite_d"], numbers["zero_d"]);
    Ok(t)
}
