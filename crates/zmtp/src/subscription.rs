//! Subscriptions: one-frame messages from a subscriber, a byte and a topic.

/// A subscriber's request. A topic covers every topic it is a prefix of; the empty one covers all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subscription<'a> {
    Add(&'a [u8]),
    Remove(&'a [u8]),
}

impl<'a> Subscription<'a> {
    /// Parses a subscriber's frame; `None` if it is not a subscription, which a publisher ignores.
    pub fn parse(frame: &'a [u8]) -> Option<Subscription<'a>> {
        match frame.split_first()? {
            (1, topic) => Some(Subscription::Add(topic)),
            (0, topic) => Some(Subscription::Remove(topic)),
            _ => None,
        }
    }

    /// Encodes it as a frame.
    pub fn to_frame(self) -> Vec<u8> {
        let (first, topic) = match self {
            Subscription::Add(topic) => (1, topic),
            Subscription::Remove(topic) => (0, topic),
        };
        let mut frame = vec![first];
        frame.extend_from_slice(topic);
        frame
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subscriptions_survive_the_wire() {
        for wish in [Subscription::Add(b"kv@"), Subscription::Add(b""), Subscription::Remove(b"kv@")] {
            assert_eq!(Subscription::parse(&wish.to_frame()), Some(wish));
        }
        assert_eq!(Subscription::parse(b""), None);
        assert_eq!(Subscription::parse(b"\x02kv"), None);
    }
}
