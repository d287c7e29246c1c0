//! Everything forked from the same first session.

use longhaul_storage::{Order, PageLimit, ReadError, View};
use serde_json::{Value, json};

use super::Engine;
use super::reads::{here, named};
use crate::code::Rejection;
use crate::codec;
use crate::ids::SessionId;
use crate::limits::PAGE_BYTES_MAX;
use crate::reader::Class;
use crate::rows;
use crate::session::projection::{Member, SessionRow};
use crate::session::viewer::Viewer;

/// Most members of a family that are shown.
pub const FAMILY_MEMBERS_MAX: usize = 1_000;

/// Everything forked from the same first session, as far as it is for the viewer.
#[derive(Debug, Clone, PartialEq)]
pub struct Family {
    /// The first session.
    pub root: SessionId,
    /// The members in the order of their ids, the first one foremost.
    pub members: Vec<FamilyMember>,
    /// Whether there are more than are shown.
    pub truncated: bool,
}

/// A member of a family of forks.
#[derive(Debug, Clone, PartialEq)]
pub struct FamilyMember {
    /// The session.
    pub id: SessionId,
    /// The session it was forked from, and the last shared position.
    pub forked_from: Option<(SessionId, u64)>,
    /// Its row; `None` = it was erased, and only its place is left.
    pub row: Option<SessionRow>,
}

impl Engine {
    /// Everything forked from the same first session; at most [`FAMILY_MEMBERS_MAX`].
    ///
    /// # Errors
    /// `session.not_found`, `session.erased`, `session.damaged`, `runtime.*`.
    pub async fn family(&self, viewer: Viewer, session: SessionId) -> Result<Family, Rejection> {
        let read = self.inner.read(Class::Page, move |view| {
            let (_, row) = here(view, &viewer, session)?;
            let root = row.root.unwrap_or(session);
            let mut members = Vec::new();
            members.extend(member(view, &viewer, root, None)?);
            let limit = PageLimit {
                items_max: FAMILY_MEMBERS_MAX,
                bytes_max: PAGE_BYTES_MAX,
            };
            let found = view.rows(&rows::members(root), None, Order::Asc, limit)?;
            let more = found.len() == FAMILY_MEMBERS_MAX;
            for (_, value) in found {
                let row: Member = codec::decode(&value)
                    .map_err(|e| ReadError::Engine(format!("a family's row: {e}")))?;
                let from = (row.forked.source, row.forked.boundary_seq);
                members.extend(member(view, &viewer, row.id, Some(from))?);
            }
            Ok(Family {
                root,
                members,
                truncated: more,
            })
        });
        read.await.map_err(|e| named(e, session))
    }
}

/// A place in a family. `None` = it is not for this viewer.
fn member(
    view: &dyn View,
    viewer: &Viewer,
    id: SessionId,
    forked_from: Option<(SessionId, u64)>,
) -> Result<Option<FamilyMember>, ReadError> {
    let row = match here(view, viewer, id) {
        Ok((_, row)) => Some(row),
        Err(ReadError::Erased) => None,
        Err(ReadError::NotFound) => return Ok(None),
        Err(e) => return Err(e),
    };
    Ok(Some(FamilyMember {
        id,
        forked_from,
        row,
    }))
}

impl FamilyMember {
    /// As shown.
    pub fn json(&self) -> Value {
        json!({
            "id": self.id,
            "forked_from": self.forked_from.map(|(id, seq)| json!({"session_id": id, "boundary_seq": seq})),
            "erased": self.row.is_none(),
            "status": self.row.as_ref().map(|r| r.status),
            "principal": self.row.as_ref().map(|r| r.principal.as_str()),
            "created_at": self.row.as_ref().map(|r| crate::time::rfc3339(r.created_at_ms)),
        })
    }
}
