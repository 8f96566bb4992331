// One forward pass of multi-head attention: the shapes every module agrees on.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace longnet {

enum class DType { kFloat32, kBFloat16 };

inline int64_t dtype_bytes(DType t) { return t == DType::kFloat32 ? 4 : 2; }
std::string_view to_string(DType t);       // "fp32", "bf16": the names in configs and results
DType parse_dtype(std::string_view name);  // throws UsageError on any other name

// Q is [batch][seq_len][num_heads][head_dim]; K and V are [batch][seq_len][num_kv_heads][head_dim].
// Query head j reads key/value head j / (num_heads / num_kv_heads) (grouped-query attention).
// O (fp32) has the shape of Q; LSE (fp32) is [batch][seq_len][num_heads].
struct AttentionProblem {
  int64_t seq_len = 0;            // N, tokens of one sequence, over all ranks
  int64_t num_heads = 1;          // H
  int64_t num_kv_heads = 1;       // Hkv, divides H
  int64_t head_dim = 64;          // d, a multiple of 8
  int64_t batch = 1;              // sequences
  DType dtype = DType::kFloat32;  // storage of Q, K and V
  bool causal = false;  // a query sees the keys at positions <= its own, in global positions
  uint64_t seed = 1;    // of the generator that fills Q, K and V
  bool operator==(const AttentionProblem&) const = default;

  int64_t kv_head_of(int64_t head) const { return head / (num_heads / num_kv_heads); }
};

// Throws Error naming the first rule that `p` breaks.
void check_problem(const AttentionProblem& p);

}  // namespace longnet
