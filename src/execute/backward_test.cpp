// Backward programs on ranks as threads: odd shapes, layouts, 1..9 ranks, against the definition in
// double; what each run counted against its account and closed form; laws that hold for any input.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <map>
#include <numeric>

#include "core/random.h"
#include "core/testing/test_support.h"
#include "execute/definition.h"
#include "execute/program_rows.h"
#include "execute/testing/executor_case.h"
#include "execute/tolerances.h"
#include "schedule/closed_form_counts.h"

namespace longnet {
namespace {

// Tensors of the whole problem: O, dQ [batch][seq_len][num_heads][head_dim]; dK, dV with K/V heads.
struct BackwardRun {
  std::vector<float> o, q, k, v;
  double o_error = 0;       // relative, of O that came rounded
  double powers_error = 0;  // relative, of gradients by an O of rounded powers
  bool operator==(const BackwardRun&) const = default;
};

Schedule backward_of(const Case& c) {
  return lower_collectives(find_algorithm(c.algorithm).make(sharded(c), Pass::kBackward),
                           parse_collective(c.collective));
}

// Copies the output of a rank's forward pass, and what its backward pass keeps of it.
void hand_over(const BoundProgram& forward, const BoundProgram& backward) {
  std::ranges::copy(forward.memory(kOutputSlot), backward.memory(kOutputSlot).begin());
  for (const auto& [from, view] : backward.program().kept)
    std::ranges::copy(forward.memory(from), backward.memory(view.slot).begin());
}

// Copies rows of a shard, [batch][its token][head][head_dim] from `first` on, to their places.
void copy_rows(const Executor& executor, const float* first, int64_t heads,
               std::vector<float>& into) {
  const AttentionProblem& p = executor.sharded().problem;
  const int64_t row = heads * p.head_dim;
  for (int64_t batch = 0; batch < p.batch; ++batch)
    for (const TokenRange& range : executor.shard())
      for (int64_t i = 0; i < range.count; ++i, first += row)
        std::copy_n(first, row, into.begin() + (batch * p.seq_len + range[i]) * row);
}

void expect_predicted(const Case& c, const ProgramExecutor& executor, Communicator& comm,
                      const MemoryLedger& ledger, int64_t workspace) {
  const CommCounters& moved = comm.counters();
  const RankCounts counted{moved.bytes_sent, moved.messages_sent, moved.bytes_received,
                           moved.messages_received,
                           ledger.peak_bytes() - ledger.peak_bytes(kProgramLists) - workspace};
  const RankCounts accounted = program_counts(executor.sharded(), executor.program(), comm.rank());
  check(counted == accounted, "counted ", to_text(counted), ", predicted ", to_text(accounted));
  const auto form =
      closed_form_counts(c.algorithm, executor.sharded(), parse_collective(c.collective),
                         comm.rank(), Pass::kBackward);
  check(!form || *form == counted, "counted ", to_text(counted), ", closed form ", to_text(*form));
}

BackwardRun run_backward(const Case& c, int threads = 1) {
  const Schedule forward = schedule_of(c), backward = backward_of(c);
  require_correct(backward);
  const auto kernel = make_kernel(c.kernel);
  const AttentionProblem& p = c.problem;
  const size_t tokens = size_t(p.batch * p.seq_len * p.head_dim);
  BackwardRun out;
  if (kernel->rounds_probabilities(p.dtype)) out.powers_error = kRoundedGradientTolerance;
  out.o.resize(tokens * size_t(p.num_heads));
  out.q = out.o;
  out.k.resize(tokens * size_t(p.num_kv_heads));
  out.v = out.k;
  run_on_threads(c.ranks, [&](Communicator& comm) {
    MemoryLedger forward_ledger, ledger;
    ProgramExecutor before(forward, *kernel, threads, comm, forward_ledger);
    before.fill_inputs();
    before.run();
    ProgramExecutor executor(backward, *kernel, threads, comm, ledger);
    executor.fill_inputs();
    hand_over(before.bound(), executor.bound());
    executor.run();  // twice: sums of the first run must not matter
    comm.reset_counters();
    executor.run();
    expect_predicted(c, executor, comm, ledger,
                     kernel->backward_workspace_bytes(executor.bound().options(), threads));
    const auto slot = [&](int i) {
      return reinterpret_cast<const float*>(executor.bound().memory(i).data());
    };
    if (comm.rank() == 0 && p.dtype == DType::kBFloat16 && !before.program().output_is_partial())
      out.o_error = 1.0 / 512;
    const int64_t keys = p.batch * executor.shard().tokens() * p.num_kv_heads * p.head_dim;
    copy_rows(executor, slot(kOutputSlot), p.num_heads, out.o);
    copy_rows(executor, slot(kGradQuerySlot), p.num_heads, out.q);
    copy_rows(executor, slot(kGradKvSlot), p.num_kv_heads, out.k);
    copy_rows(executor, slot(kGradKvSlot) + keys, p.num_kv_heads, out.v);
  });
  return out;
}

// Gradients of all rows by the definition: of Q [batch][seq_len][num_heads][head_dim], of K and V
// [batch][seq_len][num_kv_heads][head_dim]. Takes one step for each pair.
struct ReferenceGradients {
  std::vector<double> q, k, v;
};
ReferenceGradients reference_gradients(const AttentionProblem& p, const DilatedPattern& pattern) {
  const size_t d = size_t(p.head_dim);
  ReferenceGradients out;
  std::vector<QuerySample> queries;
  std::vector<KeySample> keys;
  for (int64_t batch = 0; batch < p.batch; ++batch)
    for (int64_t token = 0; token < p.seq_len; ++token) {
      for (int64_t head = 0; head < p.num_heads; ++head) queries.push_back({batch, head, token});
      for (int64_t head = 0; head < p.num_kv_heads; ++head) keys.push_back({batch, head, token});
    }
  for (const std::vector<double>& row : defined_query_gradients(p, pattern, queries))
    out.q.insert(out.q.end(), row.begin(), row.end());
  std::vector<KeyGradient> sums(keys.size(), {std::vector<double>(d), std::vector<double>(d)});
  add_defined_key_gradients(p, pattern, {0, p.num_heads, 0, 1, p.seq_len}, keys, sums);
  for (const KeyGradient& sum : sums) {
    out.k.insert(out.k.end(), sum.k.begin(), sum.k.end());
    out.v.insert(out.v.end(), sum.v.begin(), sum.v.end());
  }
  return out;
}

// An absolute floor, for gradients that are 0: one token's dQ and dK.
void expect_near(const std::vector<float>& a, const std::vector<double>& b, const std::string& what,
                 double error) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  EXPECT_LE(std::sqrt(difference), (2e-6 + error) * std::sqrt(norm) + 1e-6) << what;
}

// Sum of a * b by element, and of their absolute values.
struct Products {
  double sum = 0, absolute = 0;
  Products(const std::vector<float>& a, const std::vector<float>& b) {
    for (size_t i = 0; i < a.size(); ++i) {
      sum += double(a[i]) * b[i];
      absolute += std::fabs(double(a[i]) * b[i]);
    }
  }
};

std::vector<float> made(const AttentionProblem& p, Tensor tensor, int64_t heads) {
  std::vector<float> out;
  std::vector<float> row(static_cast<size_t>(p.head_dim));
  for (int64_t i = 0; i < p.batch * p.seq_len * heads; ++i) {
    generate_row({p.seed, tensor, i / heads, i % heads}, p.head_dim, row.data());
    if (p.dtype == DType::kBFloat16)
      for (float& x : row) x = bf16_value(bf16_bits(x));
    out.insert(out.end(), row.begin(), row.end());
  }
  return out;
}

// Scaling Q up or K down changes no score; adding to all of K's rows changes no weight; V enters
// linearly.
void expect_conserved(const Case& c, const BackwardRun& run) {
  const AttentionProblem& p = c.problem;
  const auto equal = [&](const Products& a, const Products& b, const char* law, double error) {
    EXPECT_NEAR(a.sum, b.sum, 1e-6 * (a.absolute + b.absolute) + error * b.absolute + 1e-6)
        << law << " " << describe(c);
  };
  equal(Products(made(p, Tensor::kQuery, p.num_heads), run.q),
        Products(made(p, Tensor::kKey, p.num_kv_heads), run.k), "<Q,dQ> = <K,dK>",
        run.powers_error);
  equal(Products(made(p, Tensor::kValue, p.num_kv_heads), run.v),
        Products(made(p, Tensor::kGradOut, p.num_heads), run.o), "<V,dV> = <O,dO>",
        run.o_error + run.powers_error);
  const size_t row = size_t(p.num_kv_heads * p.head_dim), item = size_t(p.seq_len) * row;
  for (size_t first = 0; first < run.k.size(); first += item)
    for (size_t column = 0; column < row; ++column) {
      double sum = 0, absolute = 0;
      for (size_t i = first + column; i < first + item; i += row) {
        sum += run.k[i];
        absolute += std::fabs(double(run.k[i]));
      }
      // Terms of dK cancel where powers and dS do: their roundings may exceed a gradient's.
      EXPECT_NEAR(sum, 0, (2e-6 + 2 * run.powers_error) * absolute + 1e-6)
          << "sum of dK " << describe(c);
    }
}

// False when the algorithm has no backward pass of this, or the kernel none at all.
bool expect_backward_right(const Case& c, std::map<std::string, ReferenceGradients>& known) {
  const ShardedProblem s = sharded(c);
  if (!why_no_program(find_algorithm(c.algorithm), s, Pass::kBackward).empty()) return false;
  const std::string name = concat(describe({.algorithm = "", .problem = c.problem}),
                                  to_string(find_algorithm(c.algorithm).pattern),
                                  s.pattern.phase_parts, to_string(s.pattern.mix));
  auto [reference, is_new] = known.try_emplace(name);
  if (is_new) reference->second = reference_gradients(c.problem, s.pattern);
  const BackwardRun run = run_backward(c);
  expect_near(run.q, reference->second.q, "dQ " + describe(c), run.powers_error);
  expect_near(run.k, reference->second.k, "dK " + describe(c), run.powers_error);
  expect_near(run.v, reference->second.v, "dV " + describe(c), run.powers_error);
  expect_conserved(c, run);
  return true;
}

// ThreadSanitizer sees three of them, as of shapes().
std::vector<std::pair<AttentionProblem, DilatedPattern>> small_shapes() {
  using P = AttentionProblem;
  std::vector<std::pair<AttentionProblem, DilatedPattern>> all = {
      // an odd number of tokens, segments over a non-integer number of ranks, rates that divide
      // nothing
      {P{.seq_len = 53, .num_heads = 6, .num_kv_heads = 2, .head_dim = 24},
       {.branches = {{9, 1}, {22, 6}, {53, 5}}}},
      // P > N
      {P{.seq_len = 5, .num_heads = 5, .num_kv_heads = 1, .head_dim = 40},
       {.branches = {{2, 1}, {900, 2}}}},
      // a batch
      {P{.seq_len = 30, .num_heads = 4, .num_kv_heads = 2, .head_dim = 16, .batch = 2},
       {.branches = {{12, 2}, {30, 1}, {30, 3}}, .offset = OffsetRule::kBlock}},
  };
#if !defined(LONGNET_THREAD_SANITIZER)
  all.push_back({P{.seq_len = 48, .num_heads = 4, .num_kv_heads = 2, .head_dim = 16},
                 {.branches = {{12, 1}, {24, 2}, {48, 4}}}});
  // no branch covers every row
  all.push_back({P{.seq_len = 37, .num_heads = 3, .num_kv_heads = 3, .head_dim = 8},
                 {.branches = {{8, 5}, {37, 7}}}});
  all.push_back(
      {P{.seq_len = 1, .num_heads = 2, .num_kv_heads = 2, .head_dim = 8}, {.branches = {{1, 1}}}});
#endif
  return all;
}

std::vector<std::string> backward_kernels() {
#if defined(LONGNET_THREAD_SANITIZER) || defined(LONGNET_ADDRESS_SANITIZER)
  return {"cpu"};  // the reference kernel takes the same rows
#endif
  std::vector<std::string> names;
  for (const std::string& name : names_of(kernels()))
    if (make_kernel(name)->why_unsupported({}).empty()) names.push_back(name);
  return names;
}

TEST(Backward, EveryShapeOnOneToNineRanks) {
  CasesRun ran;
  std::map<std::string, ReferenceGradients> known;
  for (const std::string& kernel : backward_kernels())
    for (auto [problem, pattern] : small_shapes())
      for (const AlgorithmInfo& algorithm : algorithms())
        for (const int ranks : some_of<int>({1, 2, 3, 4, 5, 6, 7, 8, 9}))
          for (const bool causal : {false, true}) {
            problem.causal = causal;  // the elements in turn
            problem.dtype = ranks % 2 == int(causal) ? DType::kFloat32 : DType::kBFloat16;
            const bool right = expect_backward_right({.algorithm = std::string(algorithm.name),
                                                      .problem = problem,
                                                      .pattern = pattern,
                                                      .ranks = ranks,
                                                      .kernel = kernel},
                                                     known);
            ran.add(concat(algorithm.name, " ", kernel), right);
          }
  ran.expect_some_of_each();
}

TEST(Backward, MixturesThatNeedEachBranchAlone) {
  std::map<std::string, ReferenceGradients> known;
  for (const std::string& kernel : backward_kernels())
    for (auto [problem, pattern] : small_shapes())
      for (const int ranks : some_of<int>({1, 2, 3, 5, 8}))
        for (const MixRule mix : {MixRule::kMean, MixRule::kSum, MixRule::kLseDetached}) {
          problem.causal = ranks % 2 == 0;
          problem.dtype = ranks % 3 == 0 ? DType::kBFloat16 : DType::kFloat32;
          pattern.mix = mix;
          const Case c{.problem = problem, .pattern = pattern, .ranks = ranks, .kernel = kernel};
          EXPECT_TRUE(expect_backward_right(c, known));
        }
}

TEST(Backward, EveryLayoutCollectiveAndOption) {
  CasesRun ran;
  std::map<std::string, ReferenceGradients> known;
  for (auto [problem, pattern] : small_shapes())
    for (const AlgorithmInfo& algorithm : algorithms())
      for (const int ranks : some_of<int>({2, 3, 4, 6, 8}))
        for (const std::string& collective : collectives_of(algorithm))
          for (const LayoutKind layout :
               {LayoutKind::kContiguous, LayoutKind::kZigzag, LayoutKind::kStriped}) {
            const bool exchanges = algorithm.collectives == CollectiveUse::kAllToAll;
            if (exchanges && layout == LayoutKind::kStriped) continue;  // takes none
            Case c{.algorithm = std::string(algorithm.name),
                   .problem = problem,
                   .pattern = pattern,
                   .ranks = ranks,
                   .scope = ranks % 4 == 0 ? GatherScope::kWholeWorld : GatherScope::kSegmentGroup,
                   .kernel = backward_kernels().front(),
                   .layout = layout,
                   .collective = collective,
                   .options = {.ulysses_degree = ranks % 4 == 0 ? 2 : 0,
                               .ring_inner = ranks % 4 == 0 ? ranks / 2 : 0,
                               .head_slice = ranks % 3,
                               .keep_gathered = ranks >= 4}};
            c.problem.causal = ranks % 2 == 0;
            if (ranks == 3) c.pattern.phase_parts = ranks;
            const bool right = expect_backward_right(c, known);
            if (algorithm.pattern == PatternKind::kDense && !algorithm.one_rank_only)
              ran.add(concat(algorithm.name, " ", collective, " ", to_string(layout)), right);
          }
  ran.expect_some_of_each();
}

// Two addends of a row of dQ in either order, and sums of dK and dV in one: the same bits.
TEST(Backward, KeptRowsGiveTheSameBits) {
  for (auto [problem, pattern] : small_shapes())
    for (int ranks = 1; ranks <= 9; ++ranks) {
      problem.causal = ranks % 2 == 0;
      pattern.branches = {{16, 1}, {problem.seq_len, 3}};
      pattern.mix = std::array{MixRule::kLse, MixRule::kMean, MixRule::kSum}[size_t(ranks % 3)];
      Case c{.problem = problem, .pattern = pattern, .ranks = ranks, .kernel = "cpu"};
      const BackwardRun again = run_backward(c);
      c.options.keep_gathered = true;
      EXPECT_EQ(run_backward(c), again) << describe(c);
    }
}

void expect_same_bits(const AttentionProblem& problem, const DilatedPattern& pattern,
                      const std::string& kernel) {
  for (const AlgorithmInfo& algorithm : algorithms()) {
    const Case c{.algorithm = std::string(algorithm.name),
                 .problem = problem,
                 .pattern = pattern,
                 .ranks = algorithm.one_rank_only  ? 1
                          : problem.num_heads == 4 ? 4
                                                   : 2,
                 .kernel = kernel};
    if (!why_no_program(algorithm, sharded(c), Pass::kBackward).empty()) continue;
    const BackwardRun once = run_backward(c);
    for (const int threads : {1, 2, 4}) EXPECT_EQ(run_backward(c, threads), once) << describe(c);
  }
}

TEST(Backward, SameBitsForAnyNumberOfThreadsAndInReruns) {
  for (const std::string& kernel : backward_kernels())
    expect_same_bits(
        {.seq_len = 120, .num_heads = 4, .num_kv_heads = 2, .head_dim = 16, .causal = true},
        {.branches = {{30, 1}, {120, 4}}}, kernel);
  // Tasks of several blocks (of at least 512 queries or keys), which threads share.
  expect_same_bits(
      {.seq_len = 1400, .num_heads = 2, .num_kv_heads = 1, .head_dim = 8, .causal = true},
      {.branches = {{1400, 1}, {1400, 2}}}, "cpu");
}

}  // namespace
}  // namespace longnet
