//! The subset of MessagePack that events need, each value in its shortest form.
//!
//! Appends values to a buffer. The caller adds as many elements to an array or map as it announced.

#[derive(Debug, Default)]
pub(super) struct Writer(Vec<u8>);

impl Writer {
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    pub(super) fn nil(&mut self) {
        self.0.push(0xc0);
    }

    pub(super) fn float(&mut self, value: f64) {
        self.0.push(0xcb);
        self.0.extend(value.to_be_bytes());
    }

    pub(super) fn uint(&mut self, value: u64) {
        match value {
            0..=0x7f => self.0.push(value as u8),
            0x80..=0xff => self.0.extend([0xcc, value as u8]),
            0x100..=0xffff => self.tagged(0xcd, &(value as u16).to_be_bytes()),
            0x1_0000..=0xffff_ffff => self.tagged(0xce, &(value as u32).to_be_bytes()),
            _ => self.tagged(0xcf, &value.to_be_bytes()),
        }
    }

    pub(super) fn text(&mut self, text: &str) {
        let length = text.len() as u32;
        match length {
            0..=0x1f => self.0.push(0xa0 | length as u8),
            0x20..=0xff => self.0.extend([0xd9, length as u8]),
            0x100..=0xffff => self.tagged(0xda, &(length as u16).to_be_bytes()),
            _ => self.tagged(0xdb, &length.to_be_bytes()),
        }
        self.0.extend_from_slice(text.as_bytes());
    }

    pub(super) fn array(&mut self, length: usize) {
        match length {
            0..=0xf => self.0.push(0x90 | length as u8),
            0x10..=0xffff => self.tagged(0xdc, &(length as u16).to_be_bytes()),
            _ => self.tagged(0xdd, &(length as u32).to_be_bytes()),
        }
    }

    /// A map of at most fifteen pairs: ours are structs.
    pub(super) fn map(&mut self, pairs: u8) {
        debug_assert!(pairs < 16, "a struct of {pairs} fields");
        self.0.push(0x80 | pairs);
    }

    fn tagged(&mut self, tag: u8, bytes: &[u8]) {
        self.0.push(tag);
        self.0.extend_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(write: impl FnOnce(&mut Writer), expected: &[u8]) {
        let mut writer = Writer::default();
        write(&mut writer);
        let bytes = writer.into_bytes();
        assert_eq!(bytes[..bytes.len().min(9)], *expected);
    }

    #[test]
    fn every_length_has_its_form() {
        check(|it| it.uint(0x7f), b"\x7f");
        check(|it| it.uint(0x80), b"\xcc\x80");
        check(|it| it.uint(0x100), b"\xcd\x01\x00");
        check(|it| it.uint(0x1_0000), b"\xce\0\x01\0\0");
        check(|it| it.uint(u64::MAX), b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff");
        check(|it| it.text("GPU"), b"\xa3GPU");
        check(|it| it.text(&"x".repeat(0x20)), b"\xd9\x20xxxxxxx");
        check(|it| it.text(&"x".repeat(0x100)), b"\xda\x01\0xxxxxx");
        check(|it| it.text(&"x".repeat(0x1_0000)), b"\xdb\0\x01\0\0xxxx");
        check(|it| it.array(15), b"\x9f");
        check(|it| it.array(16), b"\xdc\0\x10");
        check(|it| it.array(0x1_0000), b"\xdd\0\x01\0\0");
        check(|it| it.map(11), b"\x8b");
        check(Writer::nil, b"\xc0");
        check(|it| it.float(1.5), b"\xcb\x3f\xf8\0\0\0\0\0\0");
    }
}
