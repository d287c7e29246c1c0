//! The store as the engine knows it, and the rows that say who needs which pack.

use std::collections::HashSet;
use std::sync::Arc;

use longhaul_actors::checkpoint::bytes::Deleting;
use longhaul_actors::checkpoint::{BytesGone, BytesThere, Probing, SnapshotBytes};
use longhaul_actors::codec;
use longhaul_actors::rows;
use longhaul_actors::session::checkpoints::SnapshotKey;
use longhaul_actors::session::decision::SnapshotRow;
use longhaul_storage::snapshots::{Manifest, PackId};
use longhaul_storage::{Log, Order, PageLimit, ReadError, View, read};

use super::{EMPTY, PAGE, Snapshots, VaultError, unread};
use crate::catalog::store::off_thread;

/// Whether a row names a pack.
pub(super) fn has_packs(log: &dyn Log) -> Result<bool, String> {
    let one = PageLimit {
        items_max: 1,
        ..PAGE
    };
    let table = rows::table(rows::PACK_HOLDER);
    let found = read(log, |view| view.rows(&table, None, Order::Asc, one));
    Ok(!found.map_err(|e| e.to_string())?.is_empty())
}

impl SnapshotBytes for SnapshotsHandle {
    fn probe(&self, row: &SnapshotRow) -> Probing {
        let (this, kept) = (Arc::clone(&self.0), row.kept.clone());
        Box::pin(async move {
            let looked = off_thread(move || match kept {
                Some(kept) if kept.manifest != EMPTY => {
                    let manifest = Manifest::decode(&kept.manifest)?;
                    let probed = this.store.probe(&manifest);
                    probed.map_err(|e| unread(&this.store, e))
                }
                _ => Ok(()),
            });
            match looked.await {
                Some(Ok(())) => BytesThere::There,
                Some(Err(VaultError::Unusable(why))) => BytesThere::Unusable(why),
                Some(Err(why)) => BytesThere::Unreadable(why.to_string()),
                None => BytesThere::Unreadable("the looking thread died".to_owned()),
            }
        })
    }

    fn delete(&self, key: SnapshotKey, row: &SnapshotRow) -> Deleting {
        let (this, row) = (Arc::clone(&self.0), row.clone());
        Box::pin(async move {
            let done = off_thread(move || this.delete_now(key, &row)).await;
            match done {
                Some(Ok(gone)) => gone,
                Some(Err(why)) => BytesGone::Later(why.to_string()),
                None => BytesGone::Later("the deleting thread died".to_owned()),
            }
        })
    }
}

/// The store, as the engine knows it.
#[derive(Debug, Clone)]
pub struct SnapshotsHandle(pub Arc<Snapshots>);

/// Whether any snapshot but `except` needs the pack.
pub(super) fn is_held(
    view: &dyn View,
    pack: PackId,
    except: Option<SnapshotKey>,
) -> Result<bool, ReadError> {
    let limit = PageLimit {
        items_max: 2,
        ..PAGE
    };
    let found = view.rows(&rows::pack_holders(pack.0), None, Order::Asc, limit)?;
    let mut keys = found.iter().filter_map(|(key, _)| key.last_chunk::<16>());
    Ok(keys.any(|k| Some(SnapshotKey(*k)) != except))
}

/// The snapshots but `except` that need the pack, as far as one page goes.
pub(super) fn holders(
    view: &dyn View,
    pack: PackId,
    except: SnapshotKey,
) -> Result<Vec<SnapshotKey>, ReadError> {
    let found = view.rows(&rows::pack_holders(pack.0), None, Order::Asc, PAGE)?;
    let keys = found
        .iter()
        .filter_map(|(key, _)| key.last_chunk::<16>().map(|k| SnapshotKey(*k)));
    Ok(keys.filter(|k| *k != except).collect())
}

/// Every snapshot that shares a pack with one of these, directly or through others: whoever frees
/// ranges must know them all. Empty where they are too many to look at now.
pub(super) fn manifests(
    view: &dyn View,
    from: &HashSet<SnapshotKey>,
) -> Result<Vec<Manifest>, ReadError> {
    let mut open: Vec<SnapshotKey> = from.iter().copied().collect();
    let (mut seen, mut packs) = (from.clone(), HashSet::new());
    let mut out = Vec::new();
    while let Some(key) = open.pop() {
        let Some(row) = view.row(&rows::snapshot(key))? else {
            continue;
        };
        let row: SnapshotRow =
            codec::decode(&row).map_err(|e| ReadError::Engine(format!("a snapshot's row: {e}")))?;
        let kept = row.kept.map(|k| k.manifest).unwrap_or_default();
        let Ok(manifest) = Manifest::decode(&kept) else {
            // Nothing may be freed beside one that cannot be read.
            return Ok(Vec::new());
        };
        for pack in &manifest.packs {
            if !packs.insert(*pack) {
                continue;
            }
            let more = view.rows(&rows::pack_holders(pack.0), None, Order::Asc, PAGE)?;
            if more.len() >= PAGE.items_max {
                return Ok(Vec::new());
            }
            let keys = more.iter().filter_map(|(key, _)| key.last_chunk::<16>());
            open.extend(keys.map(|k| SnapshotKey(*k)).filter(|k| seen.insert(*k)));
        }
        out.push(manifest);
    }
    Ok(out)
}
