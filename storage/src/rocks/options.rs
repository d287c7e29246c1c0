//! Limits of an open log, and the engine's settings with their reasons.

use rocksdb::{
    BlockBasedOptions, Cache, ChecksumType, ColumnFamilyDescriptor, DBCompactionStyle,
    DBCompressionType, DBRecoveryMode, LogLevel, WriteBufferManager,
};

use crate::table::Table;

/// Limits of an open log. Every one has a default that suits a server of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Memory of the engine in bytes: block cache, indexes, filters and write buffers together.
    pub memory_bytes_max: usize,
    /// Files the engine keeps open.
    pub open_files_max: u32,
    /// Threads that flush and compact.
    pub background_jobs_max: u32,
    /// Bytes of the engine's own log, per file.
    pub info_log_bytes_max: usize,
    /// Files of the engine's own log that are kept.
    pub info_log_files_max: usize,
    /// Bytes of write-ahead log before old parts are flushed away: what an opening after a crash
    /// has to read.
    pub wal_bytes_max: u64,
    /// Writes that wait for the writer before an append answers busy.
    pub queue_len_max: usize,
    /// Bytes that wait for the writer before an append answers busy. One write that is larger is
    /// taken by an empty queue.
    pub queue_bytes_max: usize,
    /// Bytes that the writer puts into one batch and one sync, plus the write that crosses it.
    pub batch_bytes_max: usize,
    /// Streams whose ends the writer remembers (about 150 bytes each).
    pub ends_len_max: usize,
    /// Room that must be on a full disk before writes are tried again, in bytes.
    pub probe_bytes: u64,
    /// Wait between looks at a full disk, in milliseconds, doubling from here.
    pub probe_ms_min: u64,
    /// The longest wait between looks at a full disk, in milliseconds.
    pub probe_ms_max: u64,
    /// Attempts to reopen after a fault before the log gives up.
    pub reopen_tries_max: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            memory_bytes_max: 128 << 20,
            open_files_max: 512,
            background_jobs_max: 2,
            info_log_bytes_max: 4 << 20,
            info_log_files_max: 4,
            wal_bytes_max: 64 << 20,
            queue_len_max: 16_384,
            queue_bytes_max: 64 << 20,
            batch_bytes_max: 8 << 20,
            ends_len_max: 65_536,
            probe_bytes: 8 << 20,
            probe_ms_min: 100,
            probe_ms_max: 5_000,
            reopen_tries_max: 10,
        }
    }
}

/// The name of the column family that holds the `meta` rows.
pub(crate) const META: &str = "default";

/// How column families are to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Recovery {
    /// Cut a torn, never acknowledged tail; refuse damage before it. `PointInTime` would drop
    /// acknowledged writes behind damage without a word.
    CutTail,
    /// Read whatever can be read: for verification only.
    ReadAround,
}

/// The engine's settings for the whole database.
pub(crate) fn database(options: &Options, recovery: Recovery) -> rocksdb::Options {
    let mut db = rocksdb::Options::default();
    db.create_if_missing(true);
    db.create_missing_column_families(true);
    db.set_wal_recovery_mode(match recovery {
        // This mode silently turns reuse of write-ahead files off, which is as well: a reused
        // file has old records behind its tail.
        Recovery::CutTail => DBRecoveryMode::TolerateCorruptedTailRecords,
        Recovery::ReadAround => DBRecoveryMode::SkipAnyCorruptedRecord,
    });
    // The manifest knows the write-ahead files, so that a missing or shortened one is noticed.
    // Never turned off again: the engine would crash when it opens such a folder for reading.
    db.set_track_and_verify_wals_in_manifest(true);
    // Bounds what an opening after a crash reads.
    db.set_max_total_wal_size(options.wal_bytes_max);
    db.set_max_open_files(i32::try_from(options.open_files_max).unwrap_or(i32::MAX));
    db.set_max_background_jobs(i32::try_from(options.background_jobs_max).unwrap_or(2));
    // The engine's own log must not fill the disk.
    db.set_max_log_file_size(options.info_log_bytes_max);
    db.set_keep_log_file_num(options.info_log_files_max);
    db.set_log_level(LogLevel::Warn);
    db.set_stats_dump_period_sec(0);
    db.set_stats_persist_period_sec(0);
    // There is one writer, so the bookkeeping for several costs and gives nothing.
    db.set_allow_concurrent_memtable_write(false);
    // Opening must not read every table file.
    db.set_skip_stats_update_on_db_open(true);
    // A large write to disk is spread over its time.
    db.set_bytes_per_sync(1 << 20);
    db
}

/// One memory budget for all column families: write buffers are charged to the block cache.
pub(crate) struct Memory {
    cache: Cache,
    buffers: WriteBufferManager,
}

impl Memory {
    pub(crate) fn new(options: &Options) -> Self {
        let cache = Cache::new_lru_cache(options.memory_bytes_max);
        // Never stalls the writer: it flushes earlier instead.
        let buffers = WriteBufferManager::new_write_buffer_manager_with_cache(
            options.memory_bytes_max / 2,
            false,
            cache.clone(),
        );
        Self { cache, buffers }
    }

    /// Puts a database under the budget.
    pub(crate) fn limit(&self, db: &mut rocksdb::Options) {
        db.set_write_buffer_manager(&self.buffers);
    }
}

/// All column families with their settings.
pub(crate) fn families(options: &Options, memory: &Memory) -> Vec<ColumnFamilyDescriptor> {
    let mut families: Vec<_> = Table::ALL
        .into_iter()
        .map(|t| ColumnFamilyDescriptor::new(t.name(), family(Some(t), options, memory)))
        .collect();
    families.push(ColumnFamilyDescriptor::new(
        META,
        family(None, options, memory),
    ));
    families
}

fn family(table: Option<Table>, options: &Options, memory: &Memory) -> rocksdb::Options {
    let mut family = rocksdb::Options::default();
    let mut blocks = BlockBasedOptions::default();
    blocks.set_block_cache(&memory.cache);
    // Indexes and filters count towards the budget.
    blocks.set_cache_index_and_filter_blocks(true);
    blocks.set_pin_l0_filter_and_index_blocks_in_cache(true);
    // A checksum and a table layout that `verify` can check by itself.
    blocks.set_checksum_type(ChecksumType::CRC32c);
    blocks.set_format_version(5);
    family.set_level_compaction_dynamic_level_bytes(true);
    family.set_max_write_buffer_number(4);
    let buffer = options.memory_bytes_max / 8;
    family.set_write_buffer_size(match table {
        Some(Table::Log) => 2 * buffer,
        Some(Table::Current | Table::History | Table::State) => buffer,
        Some(Table::Streams | Table::Refs) | None => buffer / 4,
    });
    family.set_compression_type(match table {
        // So that `verify` can name what a damaged byte hit.
        Some(Table::Log) => DBCompressionType::None,
        _ => DBCompressionType::Lz4,
    });
    match table {
        // Read by exact key, often of rows that are not there.
        Some(Table::Current | Table::Streams) => blocks.set_bloom_filter(10.0, false),
        // Read by range and by the last key before another: a filter would answer nothing.
        Some(Table::Log | Table::State | Table::History | Table::Refs) | None => {}
    }
    if table == Some(Table::Log) {
        // Records are written once and never changed: merging files of like size rewrites each a
        // few times, where levels would rewrite it about ten times.
        family.set_compaction_style(DBCompactionStyle::Universal);
        family.set_level_zero_file_num_compaction_trigger(8);
    }
    if table == Some(Table::Current) {
        // Queues leave deletions where the next scan begins: compact where they gather.
        family.add_compact_on_deletion_collector_factory(1_024, 512, 0.5);
    }
    family.set_block_based_table_factory(&blocks);
    family
}
