//! A reader of dpl sidecars, standard library only, written from docs/format.md, whose numbers (R1, C1, ...) it names.
//! With the crate `memmap2` an engine maps the file instead of reading rows; the checks stay the same.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::json::{require, Json, Refused, LIMIT};
use crate::layout::{known_type, read_layout, Layout};
use crate::sha256::Sha256;

const PREFIX: &str = r#"{"__metadata__":{"dpl":"#;
const DIGEST: &str = r#""manifest_sha256":"#;

/// R16. One GGUF file of the model.
#[derive(Default)]
pub struct Shard {
    pub name: String,
    pub size: u64,
    pub header_sha256: String,
}

/// R15. `ne` has the row length first; `begin` counts from the beginning of the sidecar, `offset` from that of the GGUF
/// `shards[shard]`, where the native bytes stand.
pub struct Tensor {
    pub name: String,
    /// The name as the JSON string that stands in the file.
    pub literal: String,
    pub layout: Layout,
    pub ne: Vec<u64>,
    pub n: u64,
    pub rows: u64,
    pub row_stride: u64,
    pub begin: u64,
    pub shard: usize,
    pub offset: u64,
    pub nbytes: u64,
    pub sha256: String,
    /// Scales that are not finite, and that are zero; may be absent for types that R1 does not list.
    pub unusual_scales: Option<(u64, u64)>,
}

impl Tensor {
    /// Plane `k` of a row that `Sidecar::row` has read: `layout.planes[k].bytes * n` bytes.
    pub fn plane<'a>(&self, row: &'a [u8], k: usize) -> Result<&'a [u8], Refused> {
        require(k < self.layout.planes.len(), "no such plane")?;
        require(row.len() as u64 == self.row_stride, "not one row")?;
        let begin = self.layout.start(k, self.n)? as usize;
        Ok(&row[begin..][..(self.layout.planes[k].bytes * self.n) as usize])
    }

    /// Such a row back in the GGUF's order: `layout.block_bytes * n` bytes.
    pub fn native(&self, row: &[u8]) -> Result<Vec<u8>, Refused> {
        let block = self.layout.block_bytes as usize;
        let mut out = vec![0; block * self.n as usize];
        for (k, plane) in self.layout.planes.iter().enumerate() {
            let (bytes, offset) = (plane.bytes as usize, plane.offset as usize);
            for (i, piece) in self.plane(row, k)?.chunks_exact(bytes).enumerate() {
                out[block * i + offset..][..bytes].copy_from_slice(piece);
            }
        }
        Ok(out)
    }
}

#[derive(Default)]
struct Manifest {
    layouts: Vec<Layout>,
    shards: Vec<Shard>,
    tensors: Vec<Tensor>,
}

pub struct Sidecar {
    file: File,
    pub layouts: Vec<Layout>,
    pub shards: Vec<Shard>,
    pub tensors: Vec<Tensor>,
}

impl Sidecar {
    /// Opens a file and makes the checks C1 to C14.
    pub fn open(path: &Path) -> Result<Sidecar, Refused> {
        require(std::fs::metadata(path)?.is_file(), "not a file that can be read")?;
        let file = File::open(path)?;
        let (size, mut head) = (file.metadata()?.len(), [0; 8]);
        require(size >= 9, "C1: shorter than a header")?;
        file.read_exact_at(&mut head, 0)?;
        let length = u64::from_le_bytes(head);
        require(0 < length && length <= 1 << 25 && length <= size - 8, "C1: the header's length")?;
        let mut header = vec![0; length as usize];
        file.read_exact_at(&mut header, 8)?;
        let mut json = Json::new(&header);
        require(json.take(PREFIX), "C3: the header's beginning")?;
        let Manifest { layouts, shards, mut tensors } = read_manifest(&json.string()?)?;
        require((8 + length) % 4096 == 0, "C2: where the data begins")?;
        json.expect("}")?;
        let (start, mut begin) = (8 + length, 0);
        for tensor in &mut tensors {
            let bytes = tensor.rows * tensor.row_stride;
            require(bytes <= size - start - begin, "C14: the file is cut short")?;
            let end = begin + bytes;
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
        Ok(Sidecar { file, layouts, shards, tensors })
    }

    /// Row `r`, counted over all outer dimensions, as it stands in the file. An error if the tensor has no such row.
    pub fn row(&self, tensor: &Tensor, r: u64) -> Result<Vec<u8>, Refused> {
        require(r < tensor.rows, "no such row")?;
        let mut row = vec![0; tensor.row_stride as usize];
        self.file.read_exact_at(&mut row, tensor.begin + r * tensor.row_stride)?;
        Ok(row)
    }
}

fn read_manifest(text: &str) -> Result<Manifest, Refused> {
    let mut json = Json::new(text.as_bytes());
    let mut found = Manifest::default();
    let (mut patterns, mut left_out, mut types) = (0, HashSet::new(), Vec::new());
    json.object(8, |json, key| {
        match key {
            "format" => read_format(json)?,
            "generator" => drop(json.object(2, |json, key| texts(json, &["name", "version"], key))?),
            "layouts" => json.array(|json| read_layout(json).map(|layout| found.layouts.push(layout)))?,
            "manifest_sha256" => {
                let mut rest = text.as_bytes()[..json.at - DIGEST.len()].to_vec();
                let digest = hex(json)?;
                rest.extend(text.as_bytes().iter().skip(json.at + 1));
                require(digest == Sha256::of(&rest), "C6: the manifest's digest")?;
            }
            "selection" => drop(json.object(4, |json, key| {
                match key {
                    "exclude" | "include" => json.array(|json| json.string().map(|_| patterns += 1))?,
                    "left_out" => json.array(|json| json.string().map(|name| left_out.extend([name])))?,
                    "types" => json.array(|json| json.integer().map(|number| types.push(number)))?,
                    _ => return Ok(false),
                }
                Ok(true)
            })?),
            "skipped" => json.array(|json| {
                let read = |json: &mut Json, key: &str| match key {
                    "nbytes" if json.take("null") => Ok(true),
                    "nbytes" | "tensors" | "type" => json.integer().map(|_| true),
                    key => texts(json, &["name"], key),
                };
                json.object(4, read).map(drop)
            })?,
            "source" => drop(json.object(2, |json, key| {
                match key {
                    "general" => drop(json.object(0, |json, _| json.string().map(|_| true))?),
                    "shards" => json.array(|json| read_shard(json).map(|shard| found.shards.push(shard)))?,
                    _ => return Ok(false),
                }
                Ok(true)
            })?),
            "tensors" => json.array(|json| {
                found.tensors.push(read_tensor(json, &found.layouts, &found.shards)?);
                Ok(())
            })?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    require(json.rest().is_empty(), "C4: something follows the manifest")?;
    require(!found.tensors.is_empty(), "C8: no tensor")?;
    let ascending = found.layouts.windows(2).all(|pair| pair[0].number < pair[1].number);
    let used: BTreeSet<u64> = found.tensors.iter().map(|tensor| tensor.layout.number).collect();
    require(ascending && used.len() == found.layouts.len(), "C7: layouts that are not those of the tensors")?;
    let asked = types.windows(2).all(|pair| pair[0] < pair[1]) && used.iter().all(|number| types.contains(number));
    require(asked, "C12: the types that were asked for")?;
    let mut seen = HashSet::from(["__metadata__"]);
    let fresh = found.tensors.iter().all(|tensor| seen.insert(&tensor.name) && !left_out.contains(&tensor.name));
    require(fresh, "C12: a name stands twice")?;
    require(left_out.is_empty() || patterns > 0, "C12: tensors are left out without a pattern")?;
    Ok(found)
}

fn read_format(json: &mut Json) -> Result<(), Refused> {
    let read = |json: &mut Json, key: &str| match key {
        "major" => match json.integer()? {
            2 => Ok(true),
            major if major < 2 => Err(Refused(format!("C5: format {major}, convert again"))),
            major => Err(Refused(format!("C5: format {major}, a newer version"))),
        },
        "minor" => json.integer().map(|_| true),
        "name" => require(json.string()? == "dpl", "C5: not dpl").map(|()| true),
        _ => Ok(false),
    };
    json.object(3, read).map(drop)
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

fn read_shard(json: &mut Json) -> Result<Shard, Refused> {
    let mut shard = Shard::default();
    json.object(3, |json, key| {
        match key {
            "header_sha256" => shard.header_sha256 = hex(json)?,
            "name" => shard.name = json.string()?,
            "size" => shard.size = json.integer()?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    let plain = !shard.name.contains(['/', '\\', '\0']) && !["", ".", ".."].contains(&shard.name.as_str());
    require(plain, "C11: no base name").map(|()| shard)
}

fn read_tensor(json: &mut Json, layouts: &[Layout], shards: &[Shard]) -> Result<Tensor, Refused> {
    let (mut name, mut literal, mut sha256, mut ne) = (String::new(), String::new(), String::new(), Vec::new());
    let (mut numbers, mut counts) = (HashMap::new(), 0);
    let seen = json.object(10, |json, key| {
        let begin = json.at;
        match key {
            "name" => (name, literal) = (json.string()?, json.since(begin)),
            "sha256" => sha256 = hex(json)?,
            "ne" => json.array(|json| json.integer().map(|size| ne.push(size)))?,
            "n" | "nbytes" | "nonfinite_scales" | "offset" | "row_stride" | "rows" | "shard" | "type" | "zero_scales" => {
                counts += usize::from(key.ends_with("_scales"));
                numbers.insert(key.to_string(), json.integer()?);
            }
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    require(seen == 10 + counts, "C8: a member is missing")?;
    let number = numbers["type"];
    let layout = layouts.iter().find(|layout| layout.number == number).cloned();
    let layout = layout.ok_or(Refused("C10: a type that is not in `layouts`".to_string()))?;
    require(counts == 2 || (counts == 0 && known_type(number).is_none()), "C8: a count is missing")?;
    let product = ne.iter().try_fold(1u64, |product, &size| product.checked_mul(size.max(1)));
    let small = product.map_or(false, |product| product < LIMIT);
    require(small && (1..=4).contains(&ne.len()) && ne[0] % layout.weights == 0, "C9: `ne`")?;
    let (n, rows): (u64, u64) = (ne[0] / layout.weights, ne[1..].iter().product());
    let row_stride = layout.row_stride(n)?;
    let size = rows.checked_mul(row_stride).unwrap_or(LIMIT);
    require(size < LIMIT, "C9: more bytes than a file can have")?;
    let nbytes = rows * n * layout.block_bytes;
    for (key, expected) in [("rows", rows), ("n", n), ("row_stride", row_stride), ("nbytes", nbytes)] {
        require(numbers[key] == expected, "C10: a value that does not follow from `ne`")?;
    }
    let (shard, offset) = (usize::try_from(numbers["shard"]).unwrap_or(usize::MAX), numbers["offset"]);
    let size = shards.get(shard).map(|shard| shard.size);
    require(size.is_some(), "C11: no such shard")?;
    require(nbytes == 0 || size.map_or(false, |size| offset + nbytes <= size), "C11: outside its shard")?;
    let unusual_scales = if counts == 2 { Some((numbers["nonfinite_scales"], numbers["zero_scales"])) } else { None };
    let begin = 0;
    Ok(Tensor { name, literal, layout, ne, n, rows, row_stride, begin, shard, offset, nbytes, sha256, unusual_scales })
}
