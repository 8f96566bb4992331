#include "kernels/cuda/cudnn_sdpa.h"

namespace longnet {
namespace {

using Ref = OperationGraph::Ref;
using Dims = OperationGraph::Dims;

Dims with_lanes(const std::array<int64_t, 3>& strides) {
  return {strides[0], strides[1], strides[2], 1};
}
Dims swapped(const Dims& d) { return {d[0], d[1], d[3], d[2]}; }

class SdpaGraph {
  static constexpr cudnnDataType_t kStored = CUDNN_DATA_BFLOAT16;

 public:
  SdpaGraph(const SdpaShape& s, int64_t lse_alignment) : s_(s), lse_alignment_(lse_alignment) {}

  void forward() {
    Ref x = scaled_scores();
    if (s_.mask != ViewMask::kNone) x = hide(x);
    Ref v = g_.tensor(kV, kStored, keys_, with_lanes(s_.k));
    Ref max = per_row(), sum = per_row(), log = per_row();
    Ref shifted = scores(), e = scores(), p = scores(kStored);
    g_.reduce(CUDNN_REDUCE_TENSOR_MAX, x, max);
    g_.pointwise({.mode = CUDNN_POINTWISE_SUB, .x = x, .b = max, .y = shifted});
    g_.pointwise({.mode = CUDNN_POINTWISE_EXP, .x = shifted, .y = e});
    g_.reduce(CUDNN_REDUCE_TENSOR_ADD, e, sum);
    g_.pointwise({.mode = CUDNN_POINTWISE_LOG, .x = sum, .y = log});
    g_.pointwise({.mode = CUDNN_POINTWISE_ADD, .x = max, .b = log, .y = lse()});
    g_.pointwise({.mode = CUDNN_POINTWISE_DIV, .x = e, .b = sum, .y = p});
    g_.matmul(p, v, g_.tensor(kO, kStored, rows_, with_lanes(s_.o)));
  }

  void backward() {
    Ref grad_out = g_.tensor(kGradOut, kStored, rows_, with_lanes(s_.o));
    Ref delta = sum_of_products(grad_out);
    Ref scaled = scaled_scores(), x = scores(), p = scores();
    g_.pointwise({.mode = CUDNN_POINTWISE_SUB, .x = scaled, .b = lse(), .y = x});
    if (s_.mask != ViewMask::kNone) x = hide(x);
    g_.pointwise({.mode = CUDNN_POINTWISE_EXP, .x = x, .y = p});
    g_.matmul(transposed(p), grad_out, gradient(kGradV, keys_));

    Ref v = g_.tensor(kV, kStored, swapped(keys_), swapped(with_lanes(s_.k)));
    Ref grad_p = scores(), off = scores(), product = scores(), grad_s = scores();
    g_.matmul(grad_out, v, grad_p);
    g_.pointwise({.mode = CUDNN_POINTWISE_SUB, .x = grad_p, .b = delta, .y = off});
    g_.pointwise({.mode = CUDNN_POINTWISE_MUL, .x = off, .b = p, .y = product});
    g_.pointwise({.mode = CUDNN_POINTWISE_MUL, .x = product, .b = scale_, .y = grad_s});
    g_.matmul(transposed(grad_s), q_, gradient(kGradK, keys_));

    Ref k = g_.between(kStored, keys_, with_lanes(s_.k));
    g_.reshape(k_, k);
    Ref grad_q = gradient(kGradQ, rows_);
    if (s_.any_order) {  // blocks of keys add to the sums as they come
      Ref sums = g_.tensor(kGradQSum, CUDNN_DATA_FLOAT, rows_, OperationGraph::dense(rows_));
      g_.matmul(grad_s, k, sums);
      g_.pointwise({.mode = CUDNN_POINTWISE_IDENTITY, .x = sums, .y = grad_q});
    } else {
      g_.matmul(grad_s, k, grad_q);
    }
  }

  OperationGraph finished(cudnnHandle_t handle) && {
    g_.finish(handle);
    return std::move(g_);
  }

 private:
  Ref scores(cudnnDataType_t type = CUDNN_DATA_FLOAT) { return g_.between(type, scores_); }
  Ref per_row() { return g_.between(CUDNN_DATA_FLOAT, per_row_); }
  Ref lse() {
    return g_.tensor(kLse, CUDNN_DATA_FLOAT, per_row_, with_lanes(s_.lse),
                     {.alignment = lse_alignment_});
  }
  Ref gradient(SdpaUid uid, const Dims& dims) {
    return g_.tensor(uid, kStored, dims, OperationGraph::dense(dims));
  }
  Ref scaled_scores() {
    q_ = g_.tensor(kQ, kStored, rows_, with_lanes(s_.q));
    k_ = g_.tensor(kK, kStored, swapped(keys_), swapped(with_lanes(s_.k)));
    scale_ = g_.scalar(kScale);
    Ref raw = scores(), scaled = scores();
    g_.matmul(q_, k_, raw);
    g_.pointwise({.mode = CUDNN_POINTWISE_MUL, .x = raw, .b = scale_, .y = scaled});
    return scaled;
  }
  // Keys that a row may not see get the lowest score.
  Ref hide(Ref x) {
    Ref row = scores(CUDNN_DATA_INT32), column = scores(CUDNN_DATA_INT32);
    Ref visible = scores(CUDNN_DATA_BOOLEAN), out = scores();
    g_.pointwise({.mode = CUDNN_POINTWISE_GEN_INDEX, .x = x, .y = row, .axis = 2});
    g_.pointwise({.mode = CUDNN_POINTWISE_GEN_INDEX, .x = x, .y = column, .axis = 3});
    const bool own = s_.mask == ViewMask::kUpToOwn;
    g_.pointwise({.mode = own ? CUDNN_POINTWISE_CMP_GE : CUDNN_POINTWISE_CMP_GT,
                  .x = row,
                  .b = column,
                  .y = visible,
                  .precision = CUDNN_DATA_BOOLEAN});
    g_.pointwise({.mode = CUDNN_POINTWISE_BINARY_SELECT,
                  .x = x,
                  .b = g_.scalar(kHidden),
                  .t = visible,
                  .y = out});
    return out;
  }
  // delta, times a one that stands in the place of dropout's scale: engines know no other graph.
  Ref sum_of_products(Ref grad_out) {
    Ref o = g_.tensor(kO, kStored, rows_, with_lanes(s_.o));
    Ref products = g_.between(CUDNN_DATA_FLOAT, rows_), sum = per_row();
    Ref delta = g_.tensor(kDelta, CUDNN_DATA_FLOAT, per_row_, OperationGraph::dense(per_row_));
    g_.pointwise({.mode = CUDNN_POINTWISE_MUL, .x = grad_out, .b = o, .y = products});
    g_.reduce(CUDNN_REDUCE_TENSOR_ADD, products, sum);
    g_.pointwise({.mode = CUDNN_POINTWISE_MUL, .x = sum, .b = g_.scalar(kOne), .y = delta});
    return delta;
  }
  // Scores in 16 bits, [keys][rows].
  Ref transposed(Ref x) {
    Ref y = g_.between(kStored, swapped(scores_), swapped(OperationGraph::dense(scores_)));
    g_.reshape(x, y);
    return y;
  }

  SdpaShape s_;
  int64_t lse_alignment_;
  Dims rows_{s_.outer, s_.inner, s_.rows, s_.head_dim};
  Dims keys_{s_.outer, s_.inner, s_.keys, s_.head_dim};
  Dims scores_{s_.outer, s_.inner, s_.rows, s_.keys};
  Dims per_row_{s_.outer, s_.inner, s_.rows, 1};
  OperationGraph g_;
  Ref q_ = nullptr, k_ = nullptr, scale_ = nullptr;
};

}  // namespace

// LSEs lie behind the rows of a partial, one float per row: a head's first one may be anywhere.
std::vector<int64_t> lse_alignments(const SdpaShape& shape) {
  if (shape.backward) return {kTensorAlignment};
  return {sizeof(float), kTensorAlignment};
}

OperationGraph sdpa_graph(const SdpaShape& shape, int64_t lse_alignment, cudnnHandle_t handle) {
  SdpaGraph graph(shape, lse_alignment);
  if (shape.backward)
    graph.backward();
  else
    graph.forward();
  return std::move(graph).finished(handle);
}

}  // namespace longnet
