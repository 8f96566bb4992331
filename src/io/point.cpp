#include "io/point.h"

#include "io/axes.h"
#include "io/sha256.h"

namespace longnet {

JsonNode to_json(const DilatedBranch& b, const Field& = {}) {
  JsonNode n =
      JsonNode::object({{"segment_length", b.segment_length}, {"dilation_rate", b.dilation_rate}});
  return b.summary_tokens > 0 ? n.set("summary_tokens", b.summary_tokens) : n;
}

void from_json(const JsonNode& n, DilatedBranch& b, const Field& = {}) {
  b = {n.whole("segment_length"), n.whole("dilation_rate", 1), n.whole("summary_tokens")};
}

namespace {

// Results of before the kind was recorded leave it to the branches.
PatternKind kind_of_branches(const PointParams& p) {
  const std::vector<DilatedBranch>& branches = p.pattern.branches;
  for (const DilatedBranch& b : branches)
    if (b.summary_tokens > 0) return PatternKind::kSparse;
  const bool dense = branches.size() == 1 && branches[0].dilation_rate == 1 &&
                     branches[0].segment_length >= p.problem.seq_len;
  return dense ? PatternKind::kDense : PatternKind::kDilated;
}

JsonNode params_node(const PointParams& p, bool for_id) {
  JsonNode n = JsonNode::object();
  for (const Axis& axis : axes())
    if ((axis.use.in_id || !for_id) && !(axis.field.omit && axis.is_standard(p)))
      n.set(std::string(axis.key), to_json(axis.member.get(p), axis.field));
  n.set("branches", to_json(p.pattern.branches));
  if (!p.cluster.empty()) n.set("cluster", p.cluster);
  return n;
}

}  // namespace

JsonNode to_json(const PointParams& p, const Field&) { return params_node(p, false); }

void from_json(const JsonNode& n, PointParams& p, const Field&) {
  for (const Axis& axis : axes())
    if (const JsonNode* given = n.find(axis.key)) {
      Value value = axis.standard;
      std::visit([&](auto& v) { from_json(*given, v); }, value);
      axis.member.set(p, value);
    }
  if (const JsonNode* branches = n.find("branches")) from_json(*branches, p.pattern.branches);
  if (!n.find("pattern")) p.pattern.kind = kind_of_branches(p);
  p.cluster = n.text("cluster");
  for (const Mode mode : {Mode::kVirtual, Mode::kSimulated})
    if (!n.find("mode") && p.transport == to_string(mode)) {
      p.mode = mode;
      p.transport.clear();
    }
}

std::string canonical_params_json(const PointParams& params) {
  return dump_json(params_node(params, true), -1, true);
}

std::string point_id(const PointParams& params) {
  return sha256_hex(canonical_params_json(params)).substr(0, 8);
}

}  // namespace longnet
