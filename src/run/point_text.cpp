#include "run/point_text.h"

#include "core/check.h"
#include "io/units.h"

namespace longnet {

std::string options_text(const PointParams& p) {
  std::string text;
  const auto add = [&](const std::string& word) { text += (text.empty() ? "" : " ") + word; };
  if (p.layout != "contiguous") add(p.layout);
  if (p.ulysses_degree > 0) add(concat("Pu=", p.ulysses_degree));
  if (p.ring_inner > 0) add(concat("Pi=", p.ring_inner));
  if (p.head_slice > 0) add(concat("slice=", p.head_slice));
  if (p.collective != "native") add("via " + p.collective);
  if (p.node_size > 0) add(concat("nodes of ", p.node_size));
  if (p.problem.num_kv_heads != p.problem.num_heads) add(concat("G=", p.problem.num_kv_heads));
  if (p.replicas > 1) add(concat("replicas=", p.replicas));
  return text;
}

std::string variant_text(const PointParams& p) {
  const AttentionProblem usual;
  std::string text = options_text(p);
  const auto add = [&](const std::string& word) { text += (text.empty() ? "" : " ") + word; };
  if (p.kernel != "cpu") add(p.kernel);
  if (p.problem.head_dim != usual.head_dim) add(concat("d=", p.problem.head_dim));
  if (p.problem.dtype != usual.dtype) add(std::string(to_string(p.problem.dtype)));
  if (p.problem.causal) add("causal");
  return text;
}

std::string describe(const PointParams& p) {
  const std::string variant = variant_text(p);
  return concat(p.algorithm, variant.empty() ? "" : " ", variant,
                " N=", format_tokens(p.problem.seq_len), " P=", p.ranks,
                p.problem.batch > 1 ? concat(" batch=", p.problem.batch) : "");
}

}  // namespace longnet
