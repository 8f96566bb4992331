// One device walks the programs of all ranks, one after another, and never holds more than one
// rank's shard: the `virtual` transport.
//
// The programs, their binding and the kernels are those of real ranks. What another rank would send
// is made again by the generator, in the very place where the message would have arrived, so every
// attend sees every row that it sees on a cluster. Partial results cannot be made again: an
// algorithm whose ranks exchange them is refused (why_not_virtual).
//
//   N = 2^30, one head of 64, P = 128: shards of 2^23 tokens, 5 GiB with K, V and O; rank 5 gathers
//   the 2048 rows of the branch w = N from all ranks' tokens: 2032 of them are generated here.
//
// The output is not kept: each unit (a rank's shard of some sequences of the batch) leaves sums,
// digests and the errors of sampled rows.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/tagged_memory.h"
#include "execute/bound_program.h"
#include "execute/sample_check.h"
#include "kernels/row_worker.h"

namespace longnet {

struct WalkUnit {
  Rank rank = 0;
  int64_t first_batch = 0, batches = 1;  // sequences of the problem's batch
  bool operator==(const WalkUnit&) const = default;
};

// Seconds of one unit. `generate` makes the shard's own inputs with their digest, `receive` what
// other ranks would send.
struct WalkTimes {
  double bind_s = 0, poison_s = 0, generate_s = 0, receive_s = 0;
  double attend_s = 0, select_s = 0, merge_s = 0;  // the forward pass; select: also resets
  double summarize_s = 0, check_s = 0, wall_s = 0;
  double forward_s() const { return attend_s + select_s + merge_s; }
  void add(const WalkTimes& other);
};

// What was run of a unit's attends and merges, when only a share was asked for.
struct WalkShare {
  double pairs = 0, all_pairs = 0;
  int64_t merges = 0, all_merges = 0;
  // The unit's forward pass, had everything been run.
  double forward_s(const WalkTimes& times) const;
};

struct ShardOutcome {
  WalkUnit unit;
  WalkShare share;  // below all: no output, hence no summary, digest or sample
  WalkTimes times;
  int64_t received_bytes = 0;  // what the program's messages would have brought
  uint64_t input_digest = 0;   // of the shard's Q, K and V
  std::vector<OutputSummary> heads;
  SampleErrors errors;
};

// Bytes that a walk holds for one rank's slots, by tag: each slot is rounded up to 64.
std::map<std::string, int64_t> walk_memory(const RankProgram& program);

// Empty when one device can walk this rank's program.
std::string why_not_virtual(const RankProgram& program);

class VirtualWalk {
 public:
  // The schedule for a batch of that many sequences.
  using MakeSchedule = std::function<Schedule(int64_t batches)>;
  // `problem`: with the whole batch. Kernel, worker and ledger must outlive the walk. Memory grows
  // to what the largest unit so far needed and is used again.
  VirtualWalk(const AttentionProblem& problem, MakeSchedule make_schedule,
              const AttentionKernel& kernel, const RowWorker& worker, int threads,
              MemoryLedger& ledger);
  ~VirtualWalk();

  // Throws std::bad_alloc when the machine has too little memory.
  ShardOutcome run(const WalkUnit& unit, const std::vector<QuerySample>& samples);
  // Runs about this share of the unit's pairs: whole attends spread over the program (the steps of
  // a ring) and, where that is not fine enough, query blocks spread over an attend. Only what these
  // read is received.
  ShardOutcome run_share(const WalkUnit& unit, double share);

 private:
  std::unique_ptr<BoundProgram> prepare(ShardOutcome& out);
  BoundProgram::Memory place(const RankProgram& program);
  void receive(BoundProgram& bound, const Action& what, const BoundOp& op, ShardOutcome& out) const;
  void run_ops(BoundProgram& bound, ShardOutcome& out);
  void run_some(BoundProgram& bound, double share, ShardOutcome& out);

  AttentionProblem problem_;
  MakeSchedule make_schedule_;
  const AttentionKernel& kernel_;
  const RowWorker& worker_;
  int threads_;
  MemoryLedger& ledger_;
  std::map<int64_t, Schedule> schedules_;  // by number of sequences
  std::map<SlotTag, TaggedBuffer> memory_;
  TaggedBuffer workspace_;
};

}  // namespace longnet
