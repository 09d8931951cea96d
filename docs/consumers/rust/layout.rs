//! The layouts of docs/format.md, R1 to R4 and R14: a type's block in the GGUF and its planes in a row, for dpl.rs.

use crate::json::{require, Json, Refused, LIMIT};

/// A field: `bytes` of each block, at `offset` of it in the GGUF.
#[derive(Clone, PartialEq)]
pub struct Plane {
    pub name: String,
    pub bytes: u64,
    pub offset: u64,
}

#[derive(Clone, PartialEq)]
pub struct Layout {
    /// ggml's number.
    pub number: u64,
    pub name: String,
    /// Of a block.
    pub weights: u64,
    pub block_bytes: u64,
    /// In the order in which they stand in a row.
    pub planes: Vec<Plane>,
}

impl Layout {
    /// Bytes from one row of `n` blocks to the next; refused where that is 2^63 or more.
    pub fn row_stride(&self, n: u64) -> Result<u64, Refused> {
        self.start(self.planes.len(), n)
    }

    /// Where plane `k` begins in a row of `n` blocks.
    pub fn start(&self, k: usize, n: u64) -> Result<u64, Refused> {
        let mut begin = 0u64;
        for plane in &self.planes[..k] {
            let bytes = plane.bytes.checked_mul(n).filter(|&bytes| bytes < LIMIT).unwrap_or(LIMIT);
            begin += (bytes + 15) / 16 * 16;
            require(begin < LIMIT, "C9: more bytes than a file can have")?;
        }
        Ok(begin)
    }
}

type Known = (u64, &'static str, u64, &'static [(&'static str, u64, u64)]);
/// R1. Planes `d` and `dm` hold fp16 scales, `e` an e8m0.
const TABLE: [Known; 11] = [
    (2, "Q4_0", 32, &[("qs", 16, 2), ("d", 2, 0)]),
    (3, "Q4_1", 32, &[("qs", 16, 4), ("dm", 4, 0)]),
    (6, "Q5_0", 32, &[("qs", 16, 6), ("qh", 4, 2), ("d", 2, 0)]),
    (7, "Q5_1", 32, &[("qs", 16, 8), ("qh", 4, 4), ("dm", 4, 0)]),
    (8, "Q8_0", 32, &[("qs", 32, 2), ("d", 2, 0)]),
    (10, "Q2_K", 256, &[("qs", 64, 16), ("scales", 16, 0), ("dm", 4, 80)]),
    (11, "Q3_K", 256, &[("qs", 64, 32), ("hmask", 32, 0), ("scales", 12, 96), ("d", 2, 108)]),
    (14, "Q6_K", 256, &[("ql", 128, 0), ("qh", 64, 128), ("scales", 16, 192), ("d", 2, 208)]),
    (20, "IQ4_NL", 32, &[("qs", 16, 2), ("d", 2, 0)]),
    (23, "IQ4_XS", 256, &[("qs", 128, 8), ("scales_l", 4, 4), ("scales_h", 2, 2), ("d", 2, 0)]),
    (39, "MXFP4", 32, &[("qs", 16, 1), ("e", 1, 0)]),
];

/// The layout of a type of R1.
pub fn known_type(number: u64) -> Option<Layout> {
    let &(number, name, weights, planes) = TABLE.iter().find(|known| known.0 == number)?;
    let planes: Vec<Plane> =
        planes.iter().map(|&(name, bytes, offset)| Plane { name: name.to_string(), bytes, offset }).collect();
    let block_bytes = planes.iter().map(|plane| plane.bytes).sum();
    Some(Layout { number, name: name.to_string(), weights, block_bytes, planes })
}

/// R14, C7: a member of `layouts`; there are no other members in it than these.
pub fn read_layout(json: &mut Json) -> Result<Layout, Refused> {
    let mut layout = Layout { number: 0, name: String::new(), weights: 0, block_bytes: 0, planes: Vec::new() };
    let other = || Refused("C7: a member that is not of a layout".to_string());
    json.object(5, |json, key| {
        match key {
            "block_bytes" => layout.block_bytes = json.integer()?,
            "block_weights" => layout.weights = json.integer()?,
            "name" => layout.name = json.string()?,
            "planes" => json.array(|json| {
                let mut plane = Plane { name: String::new(), bytes: 0, offset: 0 };
                json.object(3, |json, key| {
                    match key {
                        "bytes" => plane.bytes = json.integer()?,
                        "name" => plane.name = json.string()?,
                        "offset" => plane.offset = json.integer()?,
                        _ => return Err(other()),
                    }
                    Ok(true)
                })?;
                layout.planes.push(plane);
                Ok(())
            })?,
            "type" => layout.number = json.integer()?,
            _ => return Err(other()),
        }
        Ok(true)
    })?;
    let same = known_type(layout.number).map_or(true, |known| known == layout);
    require(same, "C7: another layout of that type")?;
    let sizes = 1..=65536;
    require(sizes.contains(&layout.weights) && sizes.contains(&layout.block_bytes), "C7: the size of a block")?;
    require(layout.planes.len() <= 16, "C7: too many planes")?;
    let mut names: Vec<&str> = layout.planes.iter().map(|plane| plane.name.as_str()).collect();
    names.sort_unstable();
    require(names.windows(2).all(|pair| pair[0] != pair[1]), "C7: two planes of one name")?;
    let mut pieces: Vec<(u64, u64)> = layout.planes.iter().map(|plane| (plane.offset, plane.bytes)).collect();
    pieces.sort_unstable();
    let mut end = 0;
    for (offset, bytes) in pieces {
        let fits = offset == end && (1..=layout.block_bytes).contains(&bytes);
        require(fits, "C7: planes that do not make up the block")?;
        end += bytes;
    }
    require(end == layout.block_bytes, "C7: planes that do not make up the block")?;
    Ok(layout)
}
