//! What the documentation says of events is what the code has.

use longhaul_actors::session::event::{EventType, RESERVED_FAMILIES};

const EVENTS: &str = include_str!("../../docs/events.md");

#[test]
fn every_event_type_is_documented() {
    for (kind, _) in EventType::ALL {
        assert!(
            EVENTS.contains(&format!("`{}`", kind.text())),
            "{} is missing",
            kind.text()
        );
    }
    for family in RESERVED_FAMILIES {
        assert!(
            EVENTS.contains(&format!("`{family}.*`")),
            "{family} is missing"
        );
    }
}
