use super::*;
use crate::log::CHAIN_START;
use proptest::prelude::*;

fn sample() -> NewRecord {
    NewRecord {
        header: Bytes::from_static(b"header"),
        content: Bytes::from_static(b"{\"text\":\"hello\"}"),
        content_state: ContentState::Present,
        key_id: 3,
    }
}

/// The golden files: name, bytes as this version writes them.
fn golden() -> Vec<(&'static str, Vec<u8>)> {
    let (first, hash) = encode(&sample(), &CHAIN_START).unwrap();
    let omitted = NewRecord {
        content: Bytes::new(),
        content_state: ContentState::Omitted,
        key_id: 0,
        ..sample()
    };
    let (second, _) = encode(&omitted, &hash).unwrap();
    let mut torn_content = first.clone();
    *torn_content.last_mut().unwrap() ^= 1;
    let mut newer = first.clone();
    newer[0] = VERSION + 1;
    vec![
        ("frame-1-present", first.clone()),
        ("frame-1-omitted-after-present", second),
        (
            "frame-1-erased",
            strip(&first, ContentState::Erased).unwrap(),
        ),
        (
            "frame-1-expired",
            strip(&first, ContentState::Expired).unwrap(),
        ),
        ("frame-damaged-content", torn_content),
        ("frame-damaged-short", first[..50].to_vec()),
        ("frame-damaged-newer-version", newer),
    ]
}

#[test]
fn frames_are_the_golden_bytes() {
    for (name, bytes) in golden() {
        let path = format!("{}/tests/golden/{name}.bin", env!("CARGO_MANIFEST_DIR"));
        let stored = std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
        assert_eq!(
            bytes, stored,
            "{name}: stored frames must stay readable for ever"
        );
    }
}

#[test]
fn golden_frames_read_as_what_they_are() {
    let read = |name: &str| golden().into_iter().find(|g| g.0 == name).unwrap().1;
    let first = read("frame-1-present");
    let frame = decode(&first).unwrap();
    assert_eq!(frame.verify(&CHAIN_START), Ok(()));
    assert_eq!(frame.verify(&[1; 32]), Err(FrameError::Chain));
    let second = read("frame-1-omitted-after-present");
    assert_eq!(decode(&second).unwrap().verify(&frame.hash), Ok(()));
    for gone in ["frame-1-erased", "frame-1-expired"] {
        let bytes = read(gone);
        let stripped = decode(&bytes).unwrap();
        assert!(stripped.content.is_empty());
        assert_eq!(
            stripped.verify(&CHAIN_START),
            Ok(()),
            "erasing keeps the chain whole"
        );
        assert_eq!(stripped.hash, frame.hash);
    }
    let damaged = read("frame-damaged-content");
    assert_eq!(
        decode(&damaged).unwrap().verify(&CHAIN_START),
        Err(FrameError::Content)
    );
    assert_eq!(decode(&read("frame-damaged-short")), Err(FrameError::Short));
    let newer = read("frame-damaged-newer-version");
    assert_eq!(decode(&newer), Err(FrameError::Version(VERSION + 1)));
}

#[test]
fn content_that_is_not_stored_is_refused() {
    let record = NewRecord {
        content_state: ContentState::Omitted,
        ..sample()
    };
    assert_eq!(encode(&record, &CHAIN_START), Err(FrameError::Unexpected));
    assert_eq!(strip(b"", ContentState::Erased), Err(FrameError::Short));
    let (bytes, _) = encode(&sample(), &CHAIN_START).unwrap();
    assert_eq!(
        strip(&bytes, ContentState::Present),
        Err(FrameError::Unexpected)
    );
}

fn any_record() -> impl Strategy<Value = NewRecord> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..300);
    (bytes(), bytes(), any::<u32>(), any::<bool>()).prop_map(|(h, c, key_id, omit)| NewRecord {
        header: h.into(),
        content: if omit { Bytes::new() } else { c.into() },
        content_state: if omit {
            ContentState::Omitted
        } else {
            ContentState::Present
        },
        key_id,
    })
}

proptest! {
    #[test]
    fn what_is_encoded_comes_back(new in any_record(), previous in any::<[u8; 32]>()) {
        let (bytes, hash) = encode(&new, &previous).unwrap();
        prop_assert_eq!(decode(&bytes).unwrap().verify(&previous), Ok(()));
        let (back, digest) = record(7, &bytes).unwrap();
        prop_assert!(follows(&back, &digest, &previous));
        prop_assert!(!follows(&back, &digest, &hash));
        prop_assert_eq!(back, Record {
            seq: 7,
            header: new.header,
            content: new.content,
            content_state: new.content_state,
            key_id: new.key_id,
            hash,
        });
    }

    #[test]
    fn any_bytes_are_a_frame_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(frame) = decode(&bytes) {
            let _ = frame.verify(&CHAIN_START);
        }
    }

    /// The state byte may turn one reason for missing content into another; nothing else may
    /// change unnoticed.
    #[test]
    fn a_flipped_bit_is_noticed(new in any_record(), at in any::<prop::sample::Index>(), bit in 0u8..8) {
        let (mut bytes, _) = encode(&new, &CHAIN_START).unwrap();
        let at = at.index(bytes.len());
        prop_assume!(at != 1);
        bytes[at] ^= 1 << bit;
        prop_assert!(decode(&bytes).map_or(true, |f| f.verify(&CHAIN_START).is_err()));
    }
}
