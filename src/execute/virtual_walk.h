// One device walks the programs of all ranks, one after another, and never holds more than one
// rank's shard: the mode `virtual`.
//
// The programs, their binding and the kernels are those of real ranks. What another rank would send
// is made again by the generator, in the very place where the message would have arrived, so every
// attend sees every row that it sees on a cluster. Partial results cannot be made again: an
// algorithm whose ranks exchange them is refused (why_not_virtual). Of gradients the rows that
// ranks exchange are kept until all have been walked (walk_gradients.h).
//
//   N = 2^30, one head of 64, P = 128: shards of 2^23 tokens, 5 GiB with K, V and O; rank 5 gathers
//   the 2048 rows of the branch w = N from all ranks' tokens: 2032 of them are generated here.
//
// The output is not kept: each unit (a rank's shard of some sequences of the batch) leaves sums,
// digests and the errors of sampled rows.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/tagged_memory.h"
#include "execute/bound_program.h"
#include "execute/gradient_check.h"
#include "execute/sample_check.h"
#include "kernels/row_worker.h"

namespace longnet {

// ---- a share of a program ----
//
// Chooses the ops of a program to run when only a share of its pairs is wanted: whole attends
// spread over the program (the steps of a ring) and, where that is not fine enough, tasks spread
// over an attend.
//
//   ring, 64 steps of 8 tasks, share 1/100: 5.12 tasks, so one attend (ceil of 0.64), and of its 8
//   tasks as many as make 0.64 of it, in rounds of `at_once`; the receives that fill its keys, and
//   the merge that follows it.

// The work that was run and the work of the whole program: seconds scale by their ratios.
struct WalkShare {
  struct Part {
    double run = 0, all = 0;
    double scale() const { return run > 0 ? all / run : 1; }
  };
  Part pairs, backward_pairs, merges;  // pairs: of the forward pass
  bool is_whole() const { return pairs.all + backward_pairs.all == 0; }  // all ran, none counted
  double flops_share() const;
};

struct ShareChoice {
  std::vector<bool> runs;  // true for the ops to run
  // By op: the tasks to run of an attend, of the forward and the backward pass.
  std::vector<std::vector<AttendGrid>> attends;
  std::vector<std::vector<BackwardGrid>> backwards;
  WalkShare share;
};

// `at_once`: pieces of tasks that the device works on together; a round of them is never cut.
ShareChoice choose_share(const BoundProgram& bound, double share, int at_once);

// ---- units ----

struct WalkUnit {
  Rank rank = 0;
  int64_t first_batch = 0, batches = 1;  // sequences of the problem's batch
  bool operator==(const WalkUnit&) const = default;
};

// Seconds of one unit. `generate` makes the shard's own inputs with their digest, and on a GPU
// poisons the rest meanwhile; `receive` makes what other ranks would send.
struct WalkTimes {
  double bind_s = 0, poison_s = 0, generate_s = 0, receive_s = 0;
  double output_s = 0;  // the forward pass before a backward pass alone
  // The pass itself; pack: also resets and deltas.
  double attend_s = 0, attend_backward_s = 0, pack_s = 0, merge_s = 0;
  double summarize_s = 0, check_s = 0, wall_s = 0;
  // Seconds of the pass, had everything been run.
  double pass_s(const WalkShare& share) const;
};

// Digests, errors and laws of a unit's gradients: of all rows of dQ, and of those of dK and dV that
// are complete. The last rank that is walked completes the others.
struct GradientOutcome {
  std::array<uint64_t, 3> digests{};  // dQ, dK, dV
  GradientErrors errors{};
  LawTerms laws{};
  static void fields(auto& g, auto&& visit) {
    visit("dq_digest", g.digests[0]);
    visit("dk_digest", g.digests[1]);
    visit("dv_digest", g.digests[2]);
    visit("dq", g.errors[0]);
    visit("dk", g.errors[1]);
    visit("dv", g.errors[2]);
    visit("laws", g.laws);
  }
};

struct UnitOutcome {
  WalkUnit unit{};
  WalkShare share{};  // if not all: no output, hence no summary, digest or sample
  WalkTimes times{};
  int64_t received_bytes = 0;          // bytes that the program's messages would carry
  int64_t unit_bytes = 0;              // the unit's slots and the kernel's workspace
  uint64_t input_digest = 0;           // the shard's Q, K and V
  std::vector<OutputSummary> heads{};  // per query head
  SampleErrors errors{};
  int64_t slot_bytes = 0;  // the unit's slots
  // The errors of one sample before anything wrote the output, in the walk's first unit that has
  // samples: a check that passes these proves nothing.
  std::optional<SampleErrors> poisoned{};
  std::optional<GradientOutcome> gradients{};
};

// Bytes of a rank's slots by tag; for a backward pass alone also of the forward pass before it.
std::map<std::string, int64_t> slot_bytes_by_tag(const Schedule& schedule, Rank rank);
// Bytes that a walk of these ranks holds for one rank's slots and for gradients that ranks share,
// by tag: each slot is rounded up to 64. `in_part`: of a share, which gives no gradients.
std::map<std::string, int64_t> walk_memory(const Schedule& schedule, const std::vector<Rank>& ranks,
                                           bool in_part = false);

// True for an op that sends or receives sums of dK and dV.
bool moves_gradients(const RankProgram& program, const Action& what);

// Empty when one device can walk this rank's program.
std::string why_not_virtual(const RankProgram& program);
// A rank's program. Throws Error where one device cannot walk it.
RankProgram virtual_program(const Schedule& schedule, Rank rank);

class WalkGradients;

class UnitWalk {
 public:
  // The schedule for a batch of that many sequences.
  using MakeSchedule = std::function<Schedule(int64_t batches)>;
  // `problem`: with the whole batch. The ledger must outlive the walk.
  UnitWalk(const AttentionProblem& problem, MakeSchedule make_schedule,
           std::shared_ptr<const RowWorker> worker, int threads, MemoryLedger& ledger);
  virtual ~UnitWalk();
  // Throws std::bad_alloc when the device has too little memory.
  UnitOutcome run(const WalkUnit& unit, const std::vector<QuerySample>& samples);
  // Compares dK and dV of these keys, each in the unit that completes its row.
  void compare_keys(std::vector<KeySample> keys) { keys_ = std::move(keys); }
  // The last rank that is walked, if it is not the last of all: its unit completes the rows that
  // ranks share, with what those that are walked add to them.
  void end_with(Rank last);
  // Runs about this share of the unit's pairs (choose_share). Only what these read is received; a
  // backward pass alone reads an output that nobody made, for nothing is compared.
  UnitOutcome run_share(const WalkUnit& unit, double share);
  // The sums to which units of one part of the batch add, from the first rank to the last. They
  // must be there when the rank after `unit` runs: another process that goes on restores them
  // first. Of a backward pass.
  std::span<std::byte> sums_after(const WalkUnit& unit);

 protected:
  using Samples = std::vector<QuerySample>;
  using Compare = std::function<SampleErrors(const ExpectedRows& expected)>;
  // Runs the unit and inspects its output.
  virtual void execute_whole(const Samples& samples, UnitOutcome& out) = 0;
  // Runs `share` of its pairs.
  virtual void execute_share(double share, UnitOutcome& out) = 0;
  const Schedule& schedule_for(const WalkUnit& unit);
  const AttentionProblem& problem() const { return problem_; }
  const std::vector<KeySample>& keys() const { return keys_; }
  // The samples' rows by the definition: computed by another thread meanwhile (async), or when they
  // are wanted (deferred). What it refers to must outlive the future.
  std::future<ExpectedRows> expect(const BoundProgram& bound, const Samples& samples,
                                   std::launch when) const;
  // Between poisoning and running the unit, and after it.
  void inspect_poisoned(const BoundProgram& bound, const Samples& samples, const Compare& compare,
                        UnitOutcome& out);
  void inspect(const BoundProgram& bound, std::future<ExpectedRows>& expected,
               const Compare& compare, UnitOutcome& out) const;

  std::shared_ptr<const RowWorker> worker_;
  MemoryLedger& ledger_;
  std::unique_ptr<WalkGradients> gradients_;  // used in backward passes

 private:
  AttentionProblem problem_;
  std::vector<KeySample> keys_;
  MakeSchedule make_schedule_;
  std::map<int64_t, Schedule> schedules_;  // by number of sequences
  bool poisoned_inspected_ = false;
};

// Walks on the CPU. Memory grows to what the largest unit so far needed and is used again.
std::unique_ptr<UnitWalk> make_virtual_walk(const AttentionProblem& problem,
                                            UnitWalk::MakeSchedule make_schedule,
                                            std::shared_ptr<const AttentionKernel> kernel,
                                            int threads, MemoryLedger& ledger);
// Walks on the calling thread's GPU (cuda/device_walk.cpp). `worker` is one for the device's rows.
class DeviceKernel;
std::unique_ptr<UnitWalk> make_device_walk(const AttentionProblem& problem,
                                           UnitWalk::MakeSchedule make_schedule,
                                           std::shared_ptr<const DeviceKernel> kernel,
                                           std::shared_ptr<const RowWorker> worker,
                                           MemoryLedger& ledger);

}  // namespace longnet
