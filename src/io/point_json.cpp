#include "io/point_json.h"

#include "core/check.h"

namespace longnet {
namespace {

OffsetRule parse_offset(const std::string& name) {
  for (OffsetRule rule : {OffsetRule::kPaper, OffsetRule::kBlock, OffsetRule::kNone})
    if (to_string(rule) == name) return rule;
  throw UsageError(concat("unknown offset '", name, "': use paper, block or none"));
}

MixRule parse_mix(const std::string& name) {
  for (MixRule rule : {MixRule::kLse, MixRule::kMean, MixRule::kSum})
    if (to_string(rule) == name) return rule;
  throw UsageError(concat("unknown mix '", name, "': use lse, mean or sum"));
}

// Results of before the kind was recorded leave it to the branches.
PatternKind kind_from(const JsonNode& n, const PointParams& p) {
  const std::string name = n.text("pattern");
  for (PatternKind kind : {PatternKind::kDense, PatternKind::kDilated, PatternKind::kSparse})
    if (to_string(kind) == name) return kind;
  if (!name.empty())
    throw UsageError(concat("unknown pattern '", name, "': use dense, dilated or sparse"));
  const std::vector<DilatedBranch>& branches = p.pattern.branches;
  for (const DilatedBranch& b : branches)
    if (b.summary_tokens > 0) return PatternKind::kSparse;
  const bool dense = branches.size() == 1 && branches[0].dilation_rate == 1 &&
                     branches[0].segment_length >= p.problem.seq_len;
  return dense ? PatternKind::kDense : PatternKind::kDilated;
}

}  // namespace

JsonNode params_to_node(const PointParams& p) {
  JsonNode branches = JsonNode::array();
  for (const DilatedBranch& b : p.pattern.branches) {
    JsonNode n = JsonNode::object();
    n.set("segment_length", b.segment_length).set("dilation_rate", b.dilation_rate);
    if (b.summary_tokens > 0) n.set("summary_tokens", b.summary_tokens);
    branches.push(n);
  }
  JsonNode n = JsonNode::object();
  n.set("algorithm", p.algorithm).set("transport", p.transport).set("kernel", p.kernel);
  n.set("seq_len", p.problem.seq_len).set("ranks", p.ranks).set("batch", p.problem.batch);
  n.set("heads", p.problem.num_heads).set("kv_heads", p.problem.num_kv_heads);
  n.set("head_dim", p.problem.head_dim).set("dtype", to_string(p.problem.dtype));
  n.set("causal", p.problem.causal).set("layout", p.layout);
  n.set("pattern", to_string(p.pattern.kind)).set("branches", branches);
  n.set("gather_scope", p.gather_scope).set("offset", to_string(p.pattern.offset));
  n.set("mix", to_string(p.pattern.mix)).set("phase_parts", p.pattern.phase_parts);
  n.set("collective", p.collective).set("ulysses_degree", p.ulysses_degree);
  n.set("ring_inner", p.ring_inner).set("head_slice", p.head_slice);
  n.set("node_size", p.node_size);
  if (p.replicas != 1) n.set("replicas", p.replicas);  // ids of points without any stay
  n.set("threads", p.threads).set("seed", p.problem.seed);
  if (!p.cluster.empty()) n.set("cluster", p.cluster);
  return n;
}

PointParams params_from_node(const JsonNode& n) {
  PointParams p;
  p.algorithm = n.text("algorithm");
  p.transport = n.text("transport", p.transport);
  p.kernel = n.text("kernel", p.kernel);
  p.layout = n.text("layout", p.layout);
  p.gather_scope = n.text("gather_scope", p.gather_scope);
  p.problem.seq_len = n.whole("seq_len");
  p.problem.batch = n.whole("batch", 1);
  p.problem.num_heads = n.whole("heads", 1);
  p.problem.num_kv_heads = n.whole("kv_heads", p.problem.num_heads);
  p.problem.head_dim = n.whole("head_dim", p.problem.head_dim);
  p.problem.dtype = parse_dtype(n.text("dtype", "fp32"));
  p.problem.causal = n.flag("causal");
  p.problem.seed = uint64_t(n.whole("seed", 1));
  p.ranks = int(n.whole("ranks", 1));
  p.collective = n.text("collective", p.collective);
  p.ulysses_degree = int(n.whole("ulysses_degree"));
  p.ring_inner = int(n.whole("ring_inner"));
  p.head_slice = n.whole("head_slice");
  p.node_size = int(n.whole("node_size"));
  p.replicas = int(n.whole("replicas", 1));
  p.threads = int(n.whole("threads", 1));
  p.cluster = n.text("cluster");
  p.pattern.offset = parse_offset(n.text("offset", "paper"));
  p.pattern.mix = parse_mix(n.text("mix", "lse"));
  p.pattern.phase_parts = n.whole("phase_parts", 1);
  if (const JsonNode* branches = n.find("branches"))
    for (const JsonNode& b : branches->items)
      p.pattern.branches.push_back(
          {b.whole("segment_length"), b.whole("dilation_rate", 1), b.whole("summary_tokens")});
  p.pattern.kind = kind_from(n, p);
  return p;
}

}  // namespace longnet
