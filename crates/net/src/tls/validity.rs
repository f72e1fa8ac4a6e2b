//! How long a certificate is valid, read from its DER.
//!
//! rustls checks the dates of the certificates that it receives, and never those of the one that it presents: a listener
//! serves an expired certificate without a word, and only its clients know. So the router has to look for itself.

use maitre_base::time::days_since_1970;
use rustls::pki_types::CertificateDer;

const SEQUENCE: u8 = 0x30;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
/// `[0]`, which holds the version; absent from certificates of version 1.
const VERSION: u8 = 0xa0;

const DAY: i64 = 86_400;

/// The first and the last second of a certificate, since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    pub begins: i64,
    pub ends: i64,
}

/// Why a certificate needs an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// Whatever renews it should have done so by now.
    Soon,
    Expired,
}

impl Validity {
    /// None if it is not the DER of a certificate.
    pub(super) fn of(certificate: &CertificateDer<'_>) -> Option<Validity> {
        let (certificate, _) = element(certificate, SEQUENCE)?;
        let (signed, _) = element(certificate, SEQUENCE)?;
        let rest = element(signed, VERSION).map_or(signed, |it| it.1);
        // Serial number, algorithm and issuer come before it.
        let rest = any(any(any(rest)?.2)?.2)?.2;
        let (validity, _) = element(rest, SEQUENCE)?;
        let (tag, begins, rest) = any(validity)?;
        let (end_tag, ends, _) = any(rest)?;
        Some(Validity { begins: seconds(tag, begins)?, ends: seconds(end_tag, ends)? })
    }

    /// Soon is a tenth of its life, which suits certificates of an hour, and a week at most: by then those of 90 days
    /// should have been renewed three weeks ago.
    pub fn expiry(self, now: i64) -> Option<Expiry> {
        let soon = (self.ends.saturating_sub(self.begins) / 10).min(7 * DAY);
        match self.ends.saturating_sub(now) {
            left if left < 0 => Some(Expiry::Expired),
            left if left < soon => Some(Expiry::Soon),
            _ => None,
        }
    }
}

/// The tag and content of the first element, and what follows it.
fn any(input: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&[tag, first], rest) = input.split_first_chunk()?;
    let (length, rest) = match first {
        ..=0x7f => (usize::from(first), rest),
        // One to three bytes of length follow: files are limited to a mebibyte.
        0x81..=0x83 => {
            let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (bytes.iter().fold(0, |length, &byte| length << 8 | usize::from(byte)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

/// The content of the first element, if it has this tag, and what follows it.
fn element(input: &[u8], wanted: u8) -> Option<(&[u8], &[u8])> {
    any(input).filter(|it| it.0 == wanted).map(|it| (it.1, it.2))
}

/// `YYMMDDHHMMSSZ` of the years 1950 to 2049, or `YYYYMMDDHHMMSSZ`: certificates have no other forms.
fn seconds(tag: u8, text: &[u8]) -> Option<i64> {
    let digits = text.strip_suffix(b"Z")?;
    let (year, rest) = digits.split_at_checked(digits.len().checked_sub(10)?)?;
    let year = match (tag, number(year)?) {
        (UTC_TIME, it @ 0..=49) => 2_000 + it,
        (UTC_TIME, it @ 50..=99) => 1_900 + it,
        (GENERALIZED_TIME, it) => it,
        _ => return None,
    };
    let mut parts = rest.chunks(2).map(number);
    let mut next = || parts.next()?;
    let (month, day, hour, minute, second) = (next()?, next()?, next()?, next()?, next()?);
    (1..=12)
        .contains(&month)
        .then(|| days_since_1970(year, month, day) * DAY + hour * 3_600 + minute * 60 + second)
}

fn number(digits: &[u8]) -> Option<i64> {
    let is_number = digits.len() <= 4 && digits.iter().all(u8::is_ascii_digit);
    is_number.then(|| digits.iter().fold(0, |sum, it| sum * 10 + i64::from(it - b'0')))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    fn certificate(begins: (i32, u8, u8), ends: (i32, u8, u8)) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.not_before = date_time_ymd(begins.0, begins.1, begins.2);
        params.not_after = date_time_ymd(ends.0, ends.1, ends.2);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    #[test]
    fn both_forms_of_dates_are_read() {
        let read = |begins, ends| Validity::of(&certificate(begins, ends)).unwrap();
        // As `date -u -d 2024-02-29 +%s` prints.
        let short = read((2024, 2, 29), (2049, 12, 31));
        assert_eq!(short, Validity { begins: 1_709_164_800, ends: 2_524_521_600 });
        let long = read((1970, 1, 1), (2050, 1, 1));
        assert_eq!(long, Validity { begins: 0, ends: 2_524_608_000 });
    }

    #[test]
    fn anything_else_is_none_and_no_panic() {
        let whole = certificate((2024, 1, 1), (2025, 1, 1));
        for length in 0..whole.len() {
            // The dates are within the first part; what follows them is not read.
            let cut = CertificateDer::from(whole[..length].to_vec());
            assert_eq!(Validity::of(&cut), None, "{length}");
        }
        for position in 0..whole.len() {
            let mut bent = whole.to_vec();
            bent[position] ^= 0xff;
            let _ = Validity::of(&CertificateDer::from(bent));
        }
    }

    #[test]
    fn a_certificate_expires_soon_in_its_last_tenth_or_week() {
        for (life, left, expected) in [
            (90 * DAY, 8 * DAY, None),
            (90 * DAY, 6 * DAY, Some(Expiry::Soon)),
            (3_600, 400, None),
            (3_600, 300, Some(Expiry::Soon)),
            (3_600, 0, Some(Expiry::Soon)),
            (3_600, -1, Some(Expiry::Expired)),
        ] {
            let validity = Validity { begins: 1_000_000, ends: 1_000_000 + life };
            assert_eq!(validity.expiry(validity.ends - left), expected, "{life} {left}");
        }
    }
}
