#include "schedule/registry.h"

#include <map>
#include <numeric>

#include "core/check.h"

namespace longnet {

namespace {

// ---- periods ----

int divisor_or_all(int64_t period, int world) {
  return period < world && world % period == 0 ? int(period) : world;
}

// True for shards of one length whose ranks have equally many pairs: a causal mask gives that only
// with zigzag chunks of one length.
bool equal_shards(const ShardedProblem& s, int ring_size) {
  const int64_t n = s.problem.seq_len, world = s.layout.world_size();
  if (n % world != 0) return false;
  const bool zigzag = s.layout.kind() == LayoutKind::kZigzag;
  if (zigzag && n % (2 * int64_t{ring_size}) != 0) return false;
  return !s.problem.causal || zigzag;
}

int one_if_equal_shards(const ShardedProblem& s) {
  return equal_shards(s, s.layout.world_size()) ? 1 : s.layout.world_size();
}

// Inside a group each rank has its own heads: equal programs only when all have as many.
int heads_period(const ShardedProblem& s, int degree) {
  const int world = s.layout.world_size();
  const int64_t h = s.problem.num_heads, kv = s.problem.num_kv_heads;
  const bool equal_heads = h % degree == 0 && (kv % degree == 0 || degree % kv == 0);
  const bool equal_tokens =
      s.problem.seq_len % world == 0 &&
      (s.layout.kind() != LayoutKind::kZigzag || s.problem.seq_len % (2 * int64_t{world}) == 0);
  if (degree == world) return equal_heads && equal_tokens ? 1 : world;
  return equal_tokens && equal_shards(s, world / degree) ? degree : world;
}

int ulysses_period(const ShardedProblem& s) { return heads_period(s, s.layout.world_size()); }
int usp_period(const ShardedProblem& s) {
  const int degree = usp_degree(s);
  return degree == 1 ? one_if_equal_shards(s) : heads_period(s, degree);
}
int double_ring_period(const ShardedProblem& s) {
  const int world = s.layout.world_size();
  return equal_shards(s, world) ? divisor_or_all(double_ring_inner(s), world) : world;
}

// A shift must move segments onto segments, and selected rows onto selected rows.
int dilated_period(const ShardedProblem& s) {
  const int world = s.layout.world_size();
  if (s.problem.seq_len % world != 0 || s.problem.causal || s.pattern.phase_parts > 1 ||
      s.gather_scope == GatherScope::kWholeWorld)
    return world;
  const int64_t shard = s.problem.seq_len / world;
  int64_t period = 1;
  for (const DilatedBranch& b : s.pattern.branches) {
    if (b.summary_tokens > 0) return world;
    const bool whole = b.segment_length >= s.problem.seq_len;
    const int64_t step = whole ? b.dilation_rate : b.segment_length;
    if (whole && s.problem.seq_len % b.dilation_rate != 0) return world;
    period = std::lcm(period, std::lcm(step, shard) / shard);
  }
  return divisor_or_all(period, world);
}

// ---- options ----

// The options of `s`, one of them with the value that the algorithm uses.
template <auto kOption, auto kUsed>
AlgorithmOptions options_with(const ShardedProblem& s) {
  AlgorithmOptions o = s.options;
  o.*kOption = kUsed(s);
  return o;
}

// ---- reasons why an algorithm has no program ----

std::string why_not_one_rank(const ShardedProblem& s) {
  if (s.layout.world_size() == 1) return {};
  return concat("local runs on one rank, not on ", s.layout.world_size(),
                "; ring is exact on several");
}

std::string why_not_contiguous(const ShardedProblem& s) {
  if (s.layout.kind() == LayoutKind::kContiguous) return {};
  return concat("needs contiguous shards, not ", to_string(s.layout.kind()));
}

std::string why_not_striped(const ShardedProblem& s) {
  return s.layout.kind() == LayoutKind::kStriped ? "takes contiguous or zigzag shards, not striped"
                                                 : "";
}

std::string why_not_ulysses(const ShardedProblem& s) {
  if (s.layout.world_size() <= s.problem.num_heads) return why_not_striped(s);
  return concat("Ulysses splits heads: ", s.layout.world_size(), " ranks for ", s.problem.num_heads,
                " heads leave ranks without work; usp also splits the sequence");
}

std::string why_not_usp(const ShardedProblem& s) {
  const int degree = usp_degree(s);
  if (s.layout.world_size() % degree != 0)
    return concat("ulysses_degree = ", degree, " does not divide ", s.layout.world_size(),
                  " ranks");
  if (degree > s.problem.num_heads)
    return concat("ulysses_degree = ", degree, " exceeds the ", s.problem.num_heads, " heads");
  return why_not_striped(s);
}

std::string why_not_bidirectional(const ShardedProblem& s) {
  if (s.problem.num_kv_heads >= 2) return {};
  return "splits the K/V heads between two directions: one head cannot be; ring can take it";
}

std::string why_not_double_ring(const ShardedProblem& s) {
  const int inner = double_ring_inner(s);
  if (s.layout.world_size() % inner == 0) return {};
  return concat("ring_inner = ", inner, " does not divide ", s.layout.world_size(), " ranks");
}

// ---- the algorithms ----

using Options = AlgorithmOptions;
constexpr AlgorithmInfo kAlgorithms[] = {
    {.name = "local",
     .summary = "exact, on one rank, no communication",
     .one_rank_only = true,
     .attention = ring_attention,
     .why_no_program = why_not_one_rank,
     .period = one_if_equal_shards},
    {.name = "ring",
     .summary = "exact: K/V shards travel around a ring of ranks",
     .attention = ring_attention,
     .period = one_if_equal_shards},
    {.name = "all_gather",
     .summary = "exact: all K/V rows on every rank",
     .collectives = CollectiveUse::kAllGather,
     .attention = all_gather_attention,
     .period = one_if_equal_shards,
     .effective_options = options_with<&Options::head_slice, all_gather_head_slice>},
    {.name = "ulysses",
     .summary = "exact: an all-to-all gives each rank some heads of all tokens",
     .collectives = CollectiveUse::kAllToAll,
     .attention = ulysses_attention,
     .why_no_program = why_not_ulysses,
     .period = ulysses_period},
    {.name = "usp",
     .summary = "exact: Ulysses inside groups, a ring over the groups",
     .collectives = CollectiveUse::kAllToAll,
     .attention = usp_attention,
     .why_no_program = why_not_usp,
     .period = usp_period,
     .effective_options = options_with<&Options::ulysses_degree, usp_degree>},
    {.name = "double_ring",
     .summary = "exact: rings inside nodes, a ring over the nodes",
     .attention = double_ring_attention,
     .why_no_program = why_not_double_ring,
     .period = double_ring_period,
     .effective_options = options_with<&Options::ring_inner, double_ring_inner>},
    {.name = "bidirectional_ring",
     .summary = "exact: half of the K/V heads travel each way around",
     .attention = bidirectional_ring_attention,
     .why_no_program = why_not_bidirectional,
     .period = one_if_equal_shards},
    {.name = "query_ring",
     .summary = "exact: ring; backward, queries travel with their gradients",
     .forward_of = "ring",
     .attention = query_ring_attention,
     .period = one_if_equal_shards},
    {.name = "query_gather",
     .summary = "exact: queries travel, partial results are reduced",
     .collectives = CollectiveUse::kAllGather,
     .attention = query_gather_attention,
     .period = one_if_equal_shards},
    {.name = "dilated",
     .summary = "LongNet: sparse rows gathered inside each segment's ranks",
     .pattern = PatternKind::kDilated,
     .collectives = CollectiveUse::kAllGather,
     .attention = dilated_attention,
     .why_no_program = why_not_contiguous,
     .period = dilated_period,
     .effective_options = options_with<&Options::keep_gathered, dilated_keep_gathered>},
    {.name = "sparse",
     .summary = "Sparse Transformer's fixed pattern: local blocks and summary tokens",
     .pattern = PatternKind::kSparse,
     .collectives = CollectiveUse::kAllGather,
     .attention = dilated_attention,
     .why_no_program = why_not_contiguous,
     .effective_options = options_with<&Options::keep_gathered, dilated_keep_gathered>},
};

}  // namespace

std::span<const AlgorithmInfo> algorithms() { return kAlgorithms; }

namespace {

// O of 16 bits is rounded by each merge: of `kMostMerges` in a row the error stays within what one
// rounding of the output may add to a check's tolerance, 1.6e-3 sqrt(n / 3) in the L2 norm.
std::string why_not_rounded(const AlgorithmInfo& algorithm, const ShardedProblem& sharded,
                            Pass pass) {
  constexpr int kMostMerges = 16;
  if (sharded.problem.output_dtype == DType::kFloat32) return "";
  if (has_backward(pass)) return "a backward pass reads O in fp32: leave out model.output_dtype";
  const RankProgram program =
      make_schedule(algorithm, sharded, pass).program(sharded.layout.world_size() / 2);
  std::map<Slice, int> merges;  // number by rows
  bool moves = false;
  for (const Op& op : program.ops) {
    if (const auto* merge = std::get_if<Merge>(&op.what)) ++merges[merge->from.rows];
    if (is_communication(op.what) || std::holds_alternative<Pack>(op.what))
      for_each_view(op.what, [&](const SlotView& view, bool) {
        moves = moves || holds_o(program.slots[size_t(view.slot)].kind);
      });
  }
  if (moves) return concat(algorithm.name, " moves results, in fp32: leave out model.output_dtype");
  for (const auto& [rows, count] : merges)
    if (count > kMostMerges)
      return concat(algorithm.name, " merges ", count, " times into one row, which would round O ",
                    "in bf16 each time (at most ", kMostMerges, "): leave out model.output_dtype");
  return "";
}

}  // namespace

std::string why_no_program(const AlgorithmInfo& algorithm, const ShardedProblem& sharded,
                           Pass pass) {
  const std::string why = algorithm.why_no_program(sharded);
  return why.empty() ? why_not_rounded(algorithm, sharded, pass) : why;
}

Schedule make_schedule(const AlgorithmInfo& algorithm, const ShardedProblem& sharded, Pass pass) {
  Schedule made = algorithm.make(sharded, has_backward(pass) ? Pass::kBackward : Pass::kForward);
  made.algorithm = algorithm.name;
  if (pass == Pass::kBackward) made.forward = algorithm.make(sharded).program;
  if (pass == Pass::kForwardBackward)
    made.program = [first = algorithm.make(sharded).program, then = made.program](Rank rank) {
      return one_after_the_other(first(rank), then(rank));
    };
  return made;
}

const AlgorithmInfo& find_algorithm(std::string_view name) {
  for (const AlgorithmInfo& a : algorithms())
    if (a.name == name) return a;
  throw UsageError("unknown algorithm '", name, "'; known: ", join(names_of(algorithms()), ", "));
}

}  // namespace longnet
