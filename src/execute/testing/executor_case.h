// A real run on ranks as threads, as a case of a test: every sampled row against the definition in
// double, and bytes, messages and memory against the prediction. {"ring", {.seq_len = 64}, {}, 4}
// is Ring Attention over 64 tokens on four ranks.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <mutex>

#include "comm/threads/thread_world.h"
#include "core/check.h"
#include "execute/program_executor.h"
#include "execute/sample_check.h"
#include "schedule/accounting.h"
#include "schedule/check_schedule.h"
#include "schedule/lower_collectives.h"
#include "schedule/registry.h"

namespace longnet {

// ThreadSanitizer makes runs thirty times slower, AddressSanitizer ten times. Whether two ranks
// race does not depend on how many there are, nor on the rule of the mixture: one number is enough.
// Addresses depend on it a little: under AddressSanitizer a third of the cases run.
template <typename T>
std::vector<T> some_of(const std::vector<T>& all) {
#if defined(LONGNET_THREAD_SANITIZER)
  std::vector<T> some{all[all.size() / 2]};
  if (all.front() == T(1)) some.push_back(T(1));  // ranks: local runs on one alone
  return some;
#elif defined(LONGNET_ADDRESS_SANITIZER)
  std::vector<T> some;
  for (size_t i = 0; i < all.size(); i += 3) some.push_back(all[i]);
  return some;
#else
  return all;
#endif
}

inline constexpr int64_t kAllRows = 1 << 20;

// One real run: which algorithm, on what, how.
struct Case {
  std::string algorithm = "dilated";
  AttentionProblem problem = {};
  DilatedPattern pattern = {};
  int ranks = 1;
  GatherScope scope = GatherScope::kSegmentGroup;
  std::string kernel = "cpu";
  int64_t samples = kAllRows;
  LayoutKind layout = LayoutKind::kContiguous;
  std::string collective = "native";
  AlgorithmOptions options = {};
};

inline std::string describe(const Case& c) {
  return concat(c.algorithm, " N=", c.problem.seq_len, " H=", c.problem.num_heads, "/",
                c.problem.num_kv_heads, " d=", c.problem.head_dim, " ", to_string(c.problem.dtype),
                " causal=", c.problem.causal, " batch=", c.problem.batch, " P=", c.ranks,
                " scope=", int(c.scope), " mix=", to_string(c.pattern.mix),
                " offset=", to_string(c.pattern.offset), " phase=", c.pattern.phase_parts, " ",
                c.kernel, " ", to_string(c.layout), " ", c.collective);
}

inline ShardedProblem sharded(const Case& c) {
  DilatedPattern pattern = dense_pattern(c.problem.seq_len);
  if (find_algorithm(c.algorithm).pattern == PatternKind::kDilated) pattern = c.pattern;
  if (find_algorithm(c.algorithm).pattern == PatternKind::kSparse) pattern = sparse_pattern(24, 5);
  return {c.problem, pattern, {c.problem.seq_len, c.ranks, c.layout}, c.scope, c.options};
}

inline Schedule schedule_of(const Case& c) {
  return lower_collectives(find_algorithm(c.algorithm).make(sharded(c)),
                           parse_collective(c.collective));
}

// Native, and the lowerings that change the algorithm's programs.
inline std::vector<std::string> collectives_of(const AlgorithmInfo& algorithm) {
  std::vector<std::string> names = lowerings_of(algorithm.collectives);
  names.emplace_back("native");
  return names;
}

// All rows by the definition, of which `queries` are some: most cases differ only in how they run.
inline std::vector<DefinedRow> known_rows(const AttentionProblem& p, const DilatedPattern& pattern,
                                          const std::vector<QuerySample>& queries) {
  struct Known {
    AttentionProblem problem;
    DilatedPattern pattern;
    std::vector<DefinedRow> rows;  // [batch][token][head]
  };
  static std::mutex mutex;
  static std::deque<Known> all;
  const std::lock_guard lock(mutex);
  auto known = std::ranges::find_if(
      all, [&](const Known& k) { return k.problem == p && k.pattern == pattern; });
  if (known == all.end()) {
    if (all.size() == 200) all.pop_front();
    std::vector<QuerySample> every;
    for (int64_t batch = 0; batch < p.batch; ++batch)
      for (int64_t token = 0; token < p.seq_len; ++token)
        for (int64_t head = 0; head < p.num_heads; ++head)
          every.push_back({.batch = batch, .head = head, .token = token});
    all.push_back({p, pattern, defined_rows(p, pattern, every)});
    known = std::prev(all.end());
  }
  std::vector<DefinedRow> rows;
  for (const QuerySample& q : queries)
    rows.push_back(known->rows[size_t((q.batch * p.seq_len + q.token) * p.num_heads + q.head)]);
  return rows;
}

inline CheckOutcome run_case(const Case& c) {
  const ShardedProblem s = sharded(c);
  const Schedule schedule = schedule_of(c);
  require_correct(schedule);
  const auto kernel = make_kernel(c.kernel);
  const auto samples = choose_samples(s, c.samples);
  CheckOutcome outcome;
  run_on_threads(c.ranks, [&](Communicator& comm) {
    MemoryLedger ledger;
    ProgramExecutor executor(schedule, *kernel, 1, comm, ledger);
    executor.fill_inputs();
    executor.run();  // twice: buffers of the first run must not matter
    comm.reset_counters();
    executor.run();
    // Some schedules refine the layout, so the executor's problem is the one to account for.
    const RankCounts expected = program_counts(executor.sharded(), executor.program(), comm.rank());
    const AttendOptions options{
        .head_dim = c.problem.head_dim, .dtype = c.problem.dtype, .causal = c.problem.causal};
    const CommCounters& moved = comm.counters();
    const RankCounts counted{moved.bytes_sent, moved.messages_sent, moved.bytes_received,
                             moved.messages_received,
                             ledger.peak_bytes() - ledger.peak_bytes(kProgramLists) -
                                 kernel->workspace_bytes(options, 1)};
    check(counted == expected, "counted ", to_text(counted), ", predicted ", to_text(expected));
    const CheckOutcome mine = check_samples(
        executor, samples, comm, 0, c.samples == kAllRows ? known_rows : Definition(defined_rows));
    if (comm.rank() == 0) outcome = mine;
  });
  return outcome;
}

inline void expect_right(const Case& c) {
  const CheckOutcome o = run_case(c);
  EXPECT_TRUE(o.pass) << describe(c) << ": rel_l2 " << o.rel_l2_error << ", worst row "
                      << o.max_rel_error << ", LSE " << o.max_lse_error << ", NaN " << o.nan_values;
}

// ThreadSanitizer sees three of the shapes: two ranks race over slots and messages of a program,
// which the algorithm decides. Rates and sizes of heads only change how many rows there are.
inline std::vector<std::pair<AttentionProblem, DilatedPattern>> shapes() {
  using P = AttentionProblem;
  std::vector<std::pair<AttentionProblem, DilatedPattern>> all = {
      // w not divisible by r, grouped queries, segments over a non-integer number of ranks
      {P{.seq_len = 190, .num_heads = 6, .num_kv_heads = 2, .head_dim = 48},
       {.branches = {{31, 1}, {77, 6}, {190, 5}}}},
      // P > N, w > N
      {P{.seq_len = 5, .num_heads = 5, .num_kv_heads = 1, .head_dim = 80},
       {.branches = {{2, 1}, {900, 2}}}},
      // the branch of rate 1 is the longest one; a batch
      {P{.seq_len = 96, .num_heads = 4, .num_kv_heads = 2, .head_dim = 64, .batch = 2},
       {.branches = {{24, 2}, {96, 1}, {96, 3}}}},
  };
#if !defined(LONGNET_THREAD_SANITIZER)
  // plain; N not divisible by w, P, r; an odd number of tokens
  all.push_back({P{.seq_len = 128, .num_heads = 4, .num_kv_heads = 4, .head_dim = 16},
                 {.branches = {{32, 1}, {64, 2}, {128, 4}}}});
  all.push_back({P{.seq_len = 203, .num_heads = 3, .num_kv_heads = 3, .head_dim = 24},
                 {.branches = {{40, 1}, {100, 3}, {203, 7}}}});
  // r > w, r > H, r > tokens per rank; no branch covers every row
  all.push_back({P{.seq_len = 80, .num_heads = 2, .num_kv_heads = 1, .head_dim = 8},
                 {.branches = {{8, 16}, {80, 64}, {80, 3}}}});
  all.push_back({P{.seq_len = 1, .num_heads = 2, .num_kv_heads = 2, .head_dim = 128},
                 {.branches = {{1, 1}, {1, 2}}}});
  all.push_back({P{.seq_len = 70, .num_heads = 2, .num_kv_heads = 2, .head_dim = 256},
                 {.branches = {{16, 1}, {70, 4}}}});
  // one K/V head for five, head_dims between and at the powers of two
  all.push_back({P{.seq_len = 151, .num_heads = 5, .num_kv_heads = 1, .head_dim = 96},
                 {.branches = {{19, 1}, {76, 3}, {151, 8}}}});
  all.push_back({P{.seq_len = 83, .num_heads = 4, .num_kv_heads = 2, .head_dim = 128},
                 {.branches = {{11, 1}, {83, 2}}}});
#endif
  return all;
}

// False when the algorithm cannot run this.
inline bool expect_right_if_supported(const Case& c) {
  if (!find_algorithm(c.algorithm).why_no_program(sharded(c)).empty()) return false;
  expect_right(c);
  return true;
}

}  // namespace longnet
