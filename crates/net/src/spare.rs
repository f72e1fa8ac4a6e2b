//! Memory that a thread keeps from one message for the next: maps of headers, and buffers that sockets are read into.
//!
//! Both are larger than what the allocator keeps at hand for a thread. To allocate and to free one takes 350 to 400
//! instructions, and a request needs two maps and a buffer. Connections keep none of them, because most of them are idle.

use std::cell::RefCell;

use bytes::BytesMut;
use http::header::HeaderMap;

/// Maps and buffers that a thread keeps. Chosen: it seldom begins more messages before as many others end.
const MAPS_MAX: usize = 8;
const BUFFERS_MAX: usize = 4;

/// The largest map that is kept, in headers. Chosen: an ordinary message has ten.
const MAP_CAPACITY_MAX: usize = 64;

struct Spare {
    maps: Vec<HeaderMap>,
    buffers: Vec<BytesMut>,
}

thread_local! {
    static SPARE: RefCell<Spare> =
        const { RefCell::new(Spare { maps: Vec::new(), buffers: Vec::new() }) };
}

/// A map with room for so many headers.
pub(crate) fn headers(count: usize) -> HeaderMap {
    let mut headers = SPARE.with_borrow_mut(|it| it.maps.pop()).unwrap_or_default();
    headers.reserve(count);
    headers
}

/// Keeps the memory of a message's headers.
pub fn keep_headers(mut headers: HeaderMap) {
    if !(1..=MAP_CAPACITY_MAX).contains(&headers.capacity()) {
        return;
    }
    headers.clear();
    SPARE.with_borrow_mut(|it| {
        if it.maps.len() < MAPS_MAX {
            it.maps.push(headers);
        }
    });
}

/// An empty buffer, of a connection that no longer needed it, or a new one.
pub(crate) fn buffer() -> BytesMut {
    SPARE.with_borrow_mut(|it| it.buffers.pop()).unwrap_or_default()
}

/// Keeps an empty buffer that has room for so many bytes. While something that was taken from it is in use, it has that room only
/// if its allocation is larger than both: otherwise the memory goes with what was taken.
pub(crate) fn keep_buffer(mut buffer: BytesMut, bytes: usize) {
    debug_assert!(buffer.is_empty(), "a buffer is kept with bytes in it");
    if !buffer.try_reclaim(bytes) {
        return;
    }
    SPARE.with_borrow_mut(|it| {
        if it.buffers.len() < BUFFERS_MAX {
            it.buffers.push(buffer);
        }
    });
}

#[cfg(test)]
mod tests {
    use http::header::{HOST, HeaderValue};

    use super::*;

    #[test]
    fn a_map_comes_back_empty_and_with_its_memory() {
        let mut map = headers(20);
        let capacity = map.capacity();
        map.append(HOST, HeaderValue::from_static("a"));
        map.append(HOST, HeaderValue::from_static("b"));
        keep_headers(map);
        let again = headers(3);
        assert_eq!((again.capacity(), again.len(), again.get(HOST)), (capacity, 0, None));
    }

    #[test]
    fn neither_large_maps_nor_many_are_kept() {
        keep_headers(HeaderMap::with_capacity(10 * MAP_CAPACITY_MAX));
        assert!(headers(1).capacity() <= MAP_CAPACITY_MAX);
        (0..2 * MAPS_MAX).for_each(|_| keep_headers(HeaderMap::with_capacity(1)));
        (0..2 * BUFFERS_MAX).for_each(|_| keep_buffer(BytesMut::with_capacity(1), 1));
        let kept = SPARE.with_borrow(|it| (it.maps.len(), it.buffers.len()));
        assert_eq!(kept, (MAPS_MAX, BUFFERS_MAX));
    }

    #[test]
    fn a_buffer_is_kept_once_nothing_that_was_taken_from_it_is_in_use() {
        let used = || {
            let mut one = BytesMut::with_capacity(64);
            one.extend_from_slice(b"head");
            (one.split().freeze(), one)
        };
        let (taken, one) = used();
        keep_buffer(one, 64);
        assert!(taken.is_unique() && buffer().capacity() == 0);
        let (taken, one) = used();
        drop(taken);
        keep_buffer(one, 64);
        assert_eq!(buffer().capacity(), 64);
    }
}
