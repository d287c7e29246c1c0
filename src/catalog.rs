//! Deployments, workspaces and runners: durable rows beside the sessions. Each change is one
//! write with conditions, so two callers cannot both be first.

pub mod deployments;
pub mod profile;
pub mod runners;
pub(crate) mod store;
pub mod workspaces;

use std::sync::Arc;

use longhaul_actors::env::Door;
use longhaul_storage::Log;

use profile::Kinds;

/// The catalog of one runtime.
#[derive(Clone)]
pub struct Catalog {
    store: store::Store,
    kinds: Arc<Kinds>,
    deployments: Arc<deployments::Cache>,
    workspaces: Arc<workspaces::Cache>,
    runners: Arc<runners::Cache>,
}

impl Catalog {
    /// Over a log. `reads_max` reads may touch the disk at the same time.
    pub fn new(log: Arc<dyn Log>, door: Door, kinds: Kinds, reads_max: usize) -> Self {
        Self {
            store: store::Store::new(log, door, reads_max),
            kinds: Arc::new(kinds),
            deployments: Arc::default(),
            workspaces: Arc::default(),
            runners: Arc::default(),
        }
    }

    /// The harness kinds and sandbox providers that can run here.
    pub fn kinds(&self) -> &Kinds {
        &self.kinds
    }
}
