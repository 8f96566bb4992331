// Multi-head attention, forward and backward: the shapes every room agrees on.
#pragma once
#include <cstdint>

#include "core/check.h"
#include "core/enum_names.h"

namespace longnet {

// The result of a point or a program: O; dQ, dK and dV from O and dO; or one after the other. In a
// model: losses; losses and gradients of weights; or a step, which also updates the weights.
enum class Pass { kForward, kBackward, kForwardBackward, kStep };
constexpr auto texts_of(Pass) { return texts("forward", "backward", "forward_backward", "step"); }
constexpr bool has_forward(Pass p) { return p != Pass::kBackward; }
constexpr bool has_backward(Pass p) { return p != Pass::kForward; }

enum class DType { kFloat32, kBFloat16 };
constexpr auto texts_of(DType) { return texts("fp32", "bf16"); }
inline int64_t dtype_bytes(DType t) { return t == DType::kFloat32 ? 4 : 2; }

// Q is [batch][seq_len][num_heads][head_dim]; K and V are [batch][seq_len][num_kv_heads][head_dim].
// Query head j reads key/value head j / (num_heads / num_kv_heads) (grouped-query attention).
// O has the shape of Q; LSE (fp32) is [batch][seq_len][num_heads].
struct AttentionProblem {
  int64_t seq_len = 0;                   // N, tokens of one sequence, over all ranks
  int64_t num_heads = 1;                 // H
  int64_t num_kv_heads = 1;              // Hkv, divides H
  int64_t head_dim = 64;                 // d, a multiple of 8
  int64_t batch = 1;                     // sequences
  DType dtype = DType::kFloat32;         // storage of Q, K and V
  DType output_dtype = DType::kFloat32;  // storage of O; sums are fp32
  bool causal = false;  // a query sees the keys at positions <= its own, in global positions
  uint64_t seed = 1;    // seed of the generator that fills Q, K and V
  bool operator==(const AttentionProblem&) const = default;

  int64_t kv_head_of(int64_t head) const { return head / (num_heads / num_kv_heads); }
  // A row of O, in floats or in the room of floats, each of which holds two neighbours of 16 bits.
  int64_t output_row_floats() const { return head_dim * dtype_bytes(output_dtype) / 4; }
};

// Throws Error naming the first rule that `p` breaks.
inline void check_problem(const AttentionProblem& p) {
  check(p.seq_len >= 1, "seq_len must be at least 1, is ", p.seq_len);
  check(p.batch >= 1, "batch must be at least 1, is ", p.batch);
  check(p.num_heads >= 1, "num_heads must be at least 1, is ", p.num_heads);
  check(p.num_kv_heads >= 1 && p.num_heads % p.num_kv_heads == 0, "num_kv_heads = ", p.num_kv_heads,
        " must divide num_heads = ", p.num_heads);
  check(p.head_dim >= 8 && p.head_dim % 8 == 0, "head_dim must be a multiple of 8, is ",
        p.head_dim);
}

// Options that one algorithm or another reads; 0 where it chooses itself (head_slice: all at once).
// src/io/axes.cpp holds the row of each: where it is read from, which algorithms read it, what it
// is called in tables.
struct AlgorithmOptions {
  int ulysses_degree = 0;      // usp: ranks that exchange heads (Pu)
  int ring_inner = 0;          // double_ring: ranks of an inner ring (Pi)
  int64_t head_slice = 0;      // all_gather: K/V heads gathered at a time; 0: all
  bool keep_gathered = false;  // dilated, sparse: backward, the rows that forward has gathered
  bool operator==(const AlgorithmOptions&) const = default;
};

}  // namespace longnet
