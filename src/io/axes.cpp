#include "io/axes.h"

#include <algorithm>

#include "io/units.h"

namespace longnet {
namespace {

constexpr double kMostHeads = 16384;  // a schedule lists what each one selects
constexpr double kMostRanks = 1 << 24;
constexpr double kMostThreads = 4096;
constexpr double kMostWidth = 1 << 24;

const PointParams kPlain{};  // has the defaults of texts

using enum Naming;
using enum PatternKind;

// Key, default, member, description; limits and words; algorithms that read it; how it is used.
// clang-format off
const Axis kAxes[] = {
    {"algorithm", "dilated", member<&PointParams::algorithm>(),
     "A distributed attention algorithm; `lnbench --help` lists them.",
     {.min = 1}, {}, {.naming = kValue, .width = 12, .how = true}},
    {"mode", "real", member<&PointParams::mode>(),
     "real: ranks at once; virtual: one device walks all ranks; simulated: a modelled cluster.",
     {.words = enum_names<Mode>()}, {}, {.swept = false, .naming = kNever, .in_id = false, .how = true}},
    {"transport", kPlain.transport, member<&PointParams::transport>(),
     "Carrier of bytes between ranks: threads, mpi, nccl, cuda_ipc, ...; null where nothing moves.",
     {.null = true}, {}, {.swept = false, .naming = kNever, .in_id = false, .how = true}},
    {"kernel", kPlain.kernel, member<&PointParams::kernel>(),
     "Attention on one device, as `lnbench list kernels` shows; or modelled.",
     {.min = 1}, {}, {.section = "run", .naming = kValue, .label = "", .width = 9, .priority = 4, .how = true}},
    {"layout", "contiguous", member<&PointParams::layout>(),
     "Order of tokens over the ranks of exact algorithms.",
     {.words = enum_names<LayoutKind>()}, {.pattern = kDense, .several_ranks = true},
     {.label = "", .how = true}},
    {"collective", kPlain.collective, member<&PointParams::collective>(),
     "native, or a lowering to sends and receives where the algorithm has such a collective.",
     {.min = 1}, {}, {.label = "via ", .how = true}},
    {"heads", 12, member<&PointParams::problem, &AttentionProblem::num_heads>(),
     "Query heads; 12 in the paper's base model.",
     {.min = 1, .max = kMostHeads}, {}, {.section = "model"}},
    {"kv_heads", 0, member<&PointParams::problem, &AttentionProblem::num_kv_heads>(),
     "Key and value heads, a divisor of the heads; by default as many.",
     {.min = 1, .max = kMostHeads}, {}, {.section = "model", .label = "G="}},
    {"head_dim", 64, member<&PointParams::problem, &AttentionProblem::head_dim>(),
     "Size of one head (d).",
     {.min = 8, .max = 256, .multiple_of = 8}, {}, {.section = "model", .label = "d="}},
    {"dtype", "fp32", member<&PointParams::problem, &AttentionProblem::dtype>(),
     "Storage of Q, K and V, and of a model's activations; sums are fp32.",
     {.words = enum_names<DType>()}, {}, {.section = "model", .label = ""}},
    {"output_dtype", "fp32", member<&PointParams::problem, &AttentionProblem::output_dtype>(),
     "Storage of O, where a GPU's own kernels compute it in a forward pass; each merge rounds.",
     {.words = enum_names<DType>(), .omit = true}, {}, {.section = "model", .label = "O in "}},
    {"causal", false, member<&PointParams::problem, &AttentionProblem::causal>(),
     "A query sees the keys at positions up to its own.",
     {}, {}, {.section = "model", .label = "causal"}},
    {"seed", 1, member<&PointParams::problem, &AttentionProblem::seed>(),
     "Seed of the generator that fills Q, K and V.",
     {}, {}, {.section = "model"}},
    {"threads", 0, member<&PointParams::threads>(),
     "OpenMP threads of each rank; 0 leaves it to the launcher.",
     {.max = kMostThreads}, {}, {.section = "run", .how = true}},
    {"ranks", 1, member<&PointParams::ranks>(),
     "Ranks that share the work; \"world\": all there are.",
     {.min = 1, .max = kMostRanks, .words = {kWorld}}, {}, {.naming = kAlways, .width = 5, .how = true}},
    {"ulysses_degree", 0, member<&PointParams::options, &AlgorithmOptions::ulysses_degree>(),
     "usp: ranks that share an all-to-all; 0 lets the algorithm choose.",
     {.max = kMostRanks, .words = {kDivisors}}, {.algorithms = {"usp"}}, {.label = "Pu=", .how = true}},
    {"ring_inner", 0, member<&PointParams::options, &AlgorithmOptions::ring_inner>(),
     "double_ring: ranks of an inner ring; 0 lets the algorithm choose.",
     {.max = kMostRanks, .words = {kDivisors}}, {.algorithms = {"double_ring"}}, {.label = "Pi=", .how = true}},
    {"head_slice", 0, member<&PointParams::options, &AlgorithmOptions::head_slice>(),
     "all_gather: K/V heads gathered at a time; 0 gathers all.",
     {.max = kMostHeads}, {.algorithms = {"all_gather"}}, {.label = "slice=", .how = true}},
    {"node_size", 0, member<&PointParams::node_size>(),
     "Hierarchical collective: ranks of a node; 0: the divisor next to the group's root.",
     {.max = kMostRanks}, {.collective = "hierarchical"}, {.label = "nodes of ", .how = true}},
    {"replicas", 1, member<&PointParams::replicas>(),
     "Groups of ranks that share the batch (data parallelism), of models real, of attention alone "
     "simulated; \"auto\": as many as divide both batch and ranks / head_groups.",
     {.min = 1, .max = kMostRanks, .words = {kMostReplicas}, .omit = true}, {},
     {.label = "replicas=", .how = true}},
    {"head_groups", 1, member<&PointParams::head_groups>(),
     "Ranks that share tokens and split the heads and the feed-forward network of a model (tensor "
     "parallelism); the offsets of each group of heads must be those of all.",
     {.min = 1, .max = kMostHeads, .omit = true}, {.scope = Scope::kLayer},
     {.label = "heads/", .how = true}},
    {"pass", "forward", member<&PointParams::pass>(),
     "What is timed: forward; backward, from an output that is made before; both in turn; or step: both and the update of a model.",
     {.words = enum_names<Pass>(), .omit = true}, {}, {.label = "", .how = true}},
    {"keep_gathered", false, member<&PointParams::options, &AlgorithmOptions::keep_gathered>(),
     "dilated, sparse: the K/V rows that the forward pass has gathered are kept, so that the backward "
     "pass gathers none.",
     {.omit = true}, {.algorithms = {"dilated", "sparse"}, .backward = true},
     {.label = "rows kept", .how = true}},
    {"scope", "attention", member<&PointParams::scope>(),
     "Attention alone; one layer of a model around it; or a training step of the model.",
     {.words = enum_names<Scope>(), .omit = true}, {}, {.label = ""}},
    {"layers", 6, member<&PointParams::model, &ModelShape::layers>(),
     "Layers of a model.",
     {.min = 1, .max = 4096, .omit = true}, {.scope = Scope::kModel}, {.section = "model", .label = "L="}},
    {"ffn_width", 768, member<&PointParams::model, &ModelShape::ffn_width>(),
     "Width between fc1 and fc2 of a model's layers.",
     {.min = 8, .max = kMostWidth, .multiple_of = 8, .omit = true}, {.scope = Scope::kLayer},
     {.section = "model", .label = "F="}},
    {"vocabulary", 256, member<&PointParams::model, &ModelShape::vocabulary>(),
     "Tokens that a model knows; 256: bytes.",
     {.min = 2, .max = kMostWidth, .omit = true}, {.scope = Scope::kModel},
     {.section = "model", .label = "V="}},
    {"positions", "xpos", member<&PointParams::model, &ModelShape::positions>(),
     "What turns queries and keys of a model: xPos, rotary positions, or nothing.",
     {.words = enum_names<Positions>(), .omit = true}, {.scope = Scope::kLayer},
     {.section = "model", .label = "positions="}},
    {"recompute", "keep_attention", member<&PointParams::model, &ModelShape::recompute>(),
     "What a layer computes again in its backward pass: nothing (none), all but attention "
     "(keep_attention), or all, with attention's messages (full).",
     {.words = enum_names<Recompute>(), .omit = true}, {.scope = Scope::kLayer},
     {.section = "model", .label = "recompute=", .how = true}},
    {"shard_optimizer", false, member<&PointParams::model, &ModelShape::shard_optimizer>(),
     "Each rank keeps the moments of its part of the weights alone (ZeRO-1).",
     {.omit = true}, {.scope = Scope::kModel}, {.section = "model", .label = "ZeRO-1", .how = true}},
    {"gather_scope", "segment_group", member<&PointParams::gather_scope>(),
     "Ranks that gather a branch's rows: those that share a segment, or all.",
     {.words = enum_names<GatherScope>()}, {.pattern = kDilated},
     {.section = "dilated", .swept = false, .how = true}},
    {"offset", "paper", member<&PointParams::pattern, &DilatedPattern::offset>(),
     "First selected token of head j: j mod r (paper), j / ceil(H / r) (block) or 0 (none).",
     {.words = enum_names<OffsetRule>()}, {.pattern = kDilated},
     {.section = "dilated", .swept = false}},
    {"mix", "lse", member<&PointParams::pattern, &DilatedPattern::mix>(),
     "Branches mix by LSE (one softmax over all their keys), by mean, or by sum; lse_detached: by "
     "LSE, the backward pass takes the weights of branches as constants.",
     {.words = enum_names<MixRule>()}, {.pattern = kDilated},
     {.section = "dilated", .swept = false}},
    {"pattern", "dilated", member<&PointParams::pattern, &DilatedPattern::kind>(),
     "Kind of the pattern, even where one dense branch is left of it. Absent in older results.",
     {.words = enum_names<PatternKind>()}, {},
     {.swept = false, .naming = kNever, .in_id = false}},
    {"phase_parts", 1, member<&PointParams::pattern, &DilatedPattern::phase_parts>(),
     "Parts of the sequence at whose begin dilation restarts.",
     {.min = 1}, {.pattern = kDilated}, {.swept = false}},
    {"seq_len", 0, member<&PointParams::problem, &AttentionProblem::seq_len>(),
     "Tokens of one sequence, over all ranks.",
     {.min = 1, .max = kMaxSeqLen, .unit = Unit::kTokens}, {},
     {.naming = kNever, .width = 7}},
    {"batch", 1, member<&PointParams::problem, &AttentionProblem::batch>(),  // BatchConfig's rule
     "Sequences.",
     {.min = 1}, {}, {.swept = false, .naming = kNever, .width = 6}},
};
// clang-format on

}  // namespace

std::string to_text(const Value& value) {
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  return std::visit([](const auto& v) { return concat(v); }, value);
}

bool Axis::is_standard(const PointParams& p) const {
  const Value value = member.get(p);
  return value == standard || (key == "kv_heads" && p.problem.num_kv_heads == p.problem.num_heads);
}

std::span<const Axis> axes() { return kAxes; }

const Axis* find_axis(std::string_view key) {
  for (const Axis& axis : axes())
    if (axis.key == key) return &axis;
  return nullptr;
}

PointParams standard_params() {
  PointParams p;
  for (const Axis& axis : axes()) axis.member.set(p, axis.standard);
  return p;
}

bool reads(const Axis& axis, const Value& value, const PointParams& p, const KnownNames& known) {
  const Readers& r = axis.readers;
  const KnownAlgorithm algorithm = known.algorithm(p.algorithm);
  if ((r.pattern && *r.pattern != algorithm.pattern) ||
      (!r.algorithms.empty() && std::ranges::count(r.algorithms, p.algorithm) == 0) ||
      (r.several_ranks && algorithm.one_rank_only) ||
      (!r.collective.empty() && r.collective != p.collective) || p.scope < r.scope ||
      (r.backward && !has_backward(p.pass)))
    return false;
  if (p.scope == Scope::kModel) return true;  // gradients of weights are summed by collectives
  return axis.key != "collective" || known.algorithms.empty() || value == axis.standard ||
         std::ranges::count(algorithm.collectives, to_text(value)) > 0;
}

std::string options_text(const PointParams& p, bool with_sections) {
  std::vector<std::string> own, of_sections;
  for (const Axis& axis : axes()) {
    if (!axis.use.label || axis.is_standard(p)) continue;
    const Value value = axis.member.get(p);
    (axis.use.section.empty() ? own : of_sections)
        .push_back(
            concat(*axis.use.label, std::holds_alternative<bool>(value) ? "" : to_text(value)));
  }
  if (with_sections) own.insert(own.end(), of_sections.begin(), of_sections.end());
  return join(own, " ");
}

std::string describe(const PointParams& p) {
  const std::string options = options_text(p);
  return concat(p.algorithm, options.empty() ? "" : " ", options,
                " N=", format_tokens(p.problem.seq_len), " P=", p.ranks,
                p.problem.batch > 1 ? concat(" batch=", p.problem.batch) : "");
}

std::string series_name(const PointParams& p) {
  std::vector<std::string> words;
  for (const Axis& axis : axes()) {
    const Value value = axis.member.get(p);
    if (axis.use.naming == kValue)
      words.push_back(to_text(value));
    else if (axis.use.naming == kAlways || (axis.use.naming == kChanged && !axis.is_standard(p)))
      words.push_back(concat(axis.key, "=", to_text(value)));
    if (axis.key == "algorithm") words.push_back(p.way());
  }
  if (!p.cluster.empty()) words.push_back("on " + p.cluster);
  return join(words, " ");
}

}  // namespace longnet
