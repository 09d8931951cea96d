//! Canonical JSON (docs/format.md, R11), read from left to right and where it stands, for dpl.rs.

pub struct Refused(pub String);

impl From<std::io::Error> for Refused {
    fn from(error: std::io::Error) -> Self {
        Refused(error.to_string())
    }
}

pub fn require(condition: bool, check: &str) -> Result<(), Refused> {
    if condition {
        Ok(())
    } else {
        Err(Refused(check.to_string()))
    }
}

/// Integers are below it, without their sign.
pub const LIMIT: u64 = 1 << 63;
const MAX_DEPTH: usize = 16;
const MAX_MARKS: usize = 1 << 20;

pub struct Json<'a> {
    text: &'a [u8],
    pub at: usize,
    depth: usize,
    /// Commas and opening brackets so far.
    marks: usize,
}

impl<'a> Json<'a> {
    pub fn new(text: &'a [u8]) -> Self {
        Json { text, at: 0, depth: 0, marks: 0 }
    }

    pub fn rest(&self) -> &'a [u8] {
        &self.text[self.at..]
    }

    /// The text from `begin` to here.
    pub fn since(&self, begin: usize) -> String {
        String::from_utf8_lossy(&self.text[begin..self.at]).into_owned()
    }

    pub fn take(&mut self, word: &str) -> bool {
        let there = self.rest().starts_with(word.as_bytes());
        self.at += if there { word.len() } else { 0 };
        there
    }

    pub fn expect(&mut self, word: &str) -> Result<(), Refused> {
        require(self.take(word), "C4: not canonical JSON")
    }

    fn open(&mut self, bracket: &str, check: &str) -> Result<(), Refused> {
        require(self.take(bracket), check)?;
        (self.depth, self.marks) = (self.depth + 1, self.marks + 1);
        require(self.depth <= MAX_DEPTH, "C4: nested too deeply")?;
        require(self.marks <= MAX_MARKS, "C4: too many values")
    }

    fn comma(&mut self) -> Result<(), Refused> {
        self.expect(",")?;
        self.marks += 1;
        require(self.marks <= MAX_MARKS, "C4: too many values")
    }

    /// An integer from 0 to 2^63 - 1.
    pub fn integer(&mut self) -> Result<u64, Refused> {
        let count = self.rest().iter().take_while(|byte| byte.is_ascii_digit()).count();
        let digits = String::from_utf8_lossy(&self.rest()[..count]);
        let value: u64 = digits.parse().map_err(|_| Refused("C8: an integer was expected".to_string()))?;
        require(value < LIMIT && (count == 1 || !digits.starts_with('0')), "C8: an integer from 0 to 2^63 - 1")?;
        self.at += count;
        Ok(value)
    }

    pub fn string(&mut self) -> Result<String, Refused> {
        require(self.take("\""), "C8: a string was expected")?;
        let mut units: Vec<u16> = Vec::new();
        while !self.take("\"") {
            let byte = self.byte()?;
            require((b' '..=b'~').contains(&byte), "C4: a character that must be escaped")?;
            units.push(if byte == b'\\' { self.escaped()? } else { u16::from(byte) });
        }
        String::from_utf16(&units).map_err(|_| Refused("C4: an unpaired surrogate".to_string()))
    }

    fn byte(&mut self) -> Result<u8, Refused> {
        let byte = *self.rest().first().ok_or_else(|| Refused("C4: ends too early".to_string()))?;
        self.at += 1;
        Ok(byte)
    }

    fn escaped(&mut self) -> Result<u16, Refused> {
        let byte = self.byte()?;
        if let Some(plain) = b"\"\\nrtbf".iter().position(|&known| known == byte) {
            return Ok(u16::from(b"\"\\\n\r\t\x08\x0c"[plain]));
        }
        require(byte == b'u' && self.rest().len() >= 4, "C4: an escape")?;
        let digits = &self.rest()[..4];
        let hex = digits.iter().all(|digit| digit.is_ascii_digit() || (b'a'..=b'f').contains(digit));
        require(hex, "C4: an escape")?;
        let code = u16::from_str_radix(&String::from_utf8_lossy(digits), 16).unwrap_or(0);
        let must = code > 0x7e || (code < 0x20 && !b"\n\r\t\x08\x0c".contains(&(code as u8)));
        require(must, "C4: an escape that is none")?;
        self.at += 4;
        Ok(code)
    }

    /// Calls `read` for every member; it reads the value and returns true, or false for a key that it does not know. As
    /// many keys as `known` must be known; they are in ascending order, so none is there twice. Returns how many were.
    pub fn object(
        &mut self,
        known: usize,
        mut read: impl FnMut(&mut Self, &str) -> Result<bool, Refused>,
    ) -> Result<usize, Refused> {
        let (mut seen, mut before) = (0, None);
        self.open("{", "C8: an object was expected")?;
        while !self.take("}") {
            if before.is_some() {
                self.comma()?;
            }
            let key = self.string()?;
            require(before.as_ref().map_or(true, |before| *before < key), "C4: keys not in ascending order")?;
            self.expect(":")?;
            if read(self, &key)? {
                seen += 1;
            } else {
                self.skip()?;
            }
            before = Some(key);
        }
        self.depth -= 1;
        require(seen >= known, "C8: a member is missing")?;
        Ok(seen)
    }

    pub fn array(&mut self, mut read: impl FnMut(&mut Self) -> Result<(), Refused>) -> Result<(), Refused> {
        self.open("[", "C8: an array was expected")?;
        let mut first = true;
        while !self.take("]") {
            if !first {
                self.comma()?;
            }
            first = false;
            read(self)?;
        }
        self.depth -= 1;
        Ok(())
    }

    /// Any value.
    pub fn skip(&mut self) -> Result<(), Refused> {
        match self.rest().first() {
            Some(b'"') => self.string().map(drop),
            Some(b'{') => {
                let read: &mut dyn FnMut(&mut Self, &str) -> Result<bool, Refused> =
                    &mut |json, _| json.skip().map(|()| true);
                self.object(0, read).map(drop)
            }
            Some(b'[') => {
                let read: &mut dyn FnMut(&mut Self) -> Result<(), Refused> = &mut |json| json.skip();
                self.array(read)
            }
            _ if self.take("null") || self.take("true") || self.take("false") => Ok(()),
            _ => {
                let negative = self.take("-");
                require(self.integer()? > 0 || !negative, "C4: -0")
            }
        }
    }
}
