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
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/tagged_memory.h"
#include "execute/bound_program.h"
#include "execute/unit_walk.h"

namespace longnet {

// Bytes that a walk holds for one rank's slots, by tag: each slot is rounded up to 64.
std::map<std::string, int64_t> walk_memory(const RankProgram& program);

// Empty when one device can walk this rank's program.
std::string why_not_virtual(const RankProgram& program);

class VirtualWalk final : public UnitWalk {
 public:
  // `problem`: with the whole batch. Kernel, worker and ledger must outlive the walk. Memory grows
  // to what the largest unit so far needed and is used again.
  VirtualWalk(const AttentionProblem& problem, MakeSchedule make_schedule,
              const AttentionKernel& kernel, const RowWorker& worker, int threads,
              MemoryLedger& ledger);
  ~VirtualWalk() override;

  ShardOutcome run(const WalkUnit& unit, const std::vector<QuerySample>& samples) override;
  ShardOutcome run_share(const WalkUnit& unit, double share) override;

 private:
  std::unique_ptr<BoundProgram> prepare(ShardOutcome& out);
  BoundProgram::Memory place(const RankProgram& program);
  void receive(const BoundProgram& bound, size_t op, ShardOutcome& out) const;
  // `attends`: those of its tasks that run.
  void run_op(const BoundProgram& bound, size_t op, std::span<const AttendGrid> attends,
              ShardOutcome& out);

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
