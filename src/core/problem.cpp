#include "core/problem.h"

#include "core/check.h"

namespace longnet {

std::string_view to_string(DType t) { return t == DType::kFloat32 ? "fp32" : "bf16"; }

DType parse_dtype(std::string_view name) {
  if (name == "fp32") return DType::kFloat32;
  if (name == "bf16") return DType::kBFloat16;
  throw UsageError(concat("unknown dtype '", name, "': use fp32 or bf16"));
}

void check_problem(const AttentionProblem& p) {
  check(p.seq_len >= 1, "seq_len must be at least 1, is ", p.seq_len);
  check(p.batch >= 1, "batch must be at least 1, is ", p.batch);
  check(p.num_heads >= 1, "num_heads must be at least 1, is ", p.num_heads);
  check(p.num_kv_heads >= 1 && p.num_heads % p.num_kv_heads == 0, "num_kv_heads = ", p.num_kv_heads,
        " must divide num_heads = ", p.num_heads);
  check(p.head_dim >= 8 && p.head_dim % 8 == 0, "head_dim must be a multiple of 8, is ",
        p.head_dim);
}

}  // namespace longnet
