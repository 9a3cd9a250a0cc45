//! Gives messages to the batcher of thin-edge.io, and prints how many are in each batch; see batching_peers.py.
//!
//! Standard input has three 64-bit numbers a message: its stream, and its event and receive time in nanoseconds.

#![allow(dead_code)]

mod batch;
mod batchable;
mod batcher;
mod config;

use batcher::BatcherOutput;
use std::collections::BTreeSet;
use std::io::Read;
use time::OffsetDateTime;

#[derive(Debug)]
struct Sent {
    stream: i64,
    event_time: OffsetDateTime,
}

impl batchable::Batchable for Sent {
    type Key = i64;

    fn key(&self) -> i64 {
        self.stream
    }

    fn event_time(&self) -> OffsetDateTime {
        self.event_time
    }
}

fn at(nanoseconds: i64) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp_nanos(nanoseconds.into()).unwrap()
}

fn main() {
    let mut bytes = Vec::new();
    std::io::stdin().read_to_end(&mut bytes).unwrap();
    let numbers: Vec<i64> = bytes.chunks_exact(8).map(|number| i64::from_le_bytes(number.try_into().unwrap())).collect();
    let config = config::BatchConfigBuilder::new().event_jitter(500).delivery_jitter(400).message_leap_limit(0).build();
    let mut batcher = batcher::Batcher::new(config);
    let (mut sizes, mut timers) = (Vec::new(), BTreeSet::new());
    for message in numbers.chunks_exact(3) {
        let received = at(message[2]);
        while timers.first().is_some_and(|due| *due <= received) {
            sizes.extend(batcher.time(timers.pop_first().unwrap()).iter().map(Vec::len));
        }
        let sent = Sent { stream: message[0], event_time: at(message[1]) };
        for output in batcher.event(received, sent) {
            match output {
                BatcherOutput::Batch(batch) => sizes.push(batch.len()),
                BatcherOutput::Timer(due) => {
                    timers.insert(due);
                }
            }
        }
    }
    sizes.extend(batcher.flush().iter().map(Vec::len));
    for size in sizes {
        println!("{size}");
    }
}
