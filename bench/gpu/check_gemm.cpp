// gpu_check: products of matrices by cuBLASLt, sampled rows of them against those in double.
#include <algorithm>

#include "core/check.h"
#include "gpu/check.h"
#include "gpu/numbers.h"
#include "kernels/cuda/device_model.h"
#include "kernels/testing/reference_model_kernel.h"

namespace longnet::gpu {
namespace {

struct Stored {
  DType a, b, c;
};
struct Product {
  int64_t m, n, k;
  bool transpose_a = false, transpose_b = false, accumulate = false, bias = false, of_bf16 = false;
  Stored stored{};
};

void check_product(Outcome& out, const Product& p) {
  MemoryLedger ledger;
  const auto [a_rows, a_cols] = p.transpose_a ? std::pair(p.k, p.m) : std::pair(p.m, p.k);
  const auto [b_rows, b_cols] = p.transpose_b ? std::pair(p.n, p.k) : std::pair(p.k, p.n);
  Numbers a = Numbers::normal(a_rows, a_cols, 1, p.stored.a, ledger),
          b = Numbers::normal(b_rows, b_cols, 2, p.stored.b, ledger),
          c = Numbers::normal(p.m, p.n, 3, p.stored.c, ledger),
          bias = Numbers::normal(1, p.n, 4, DType::kFloat32, ledger);
  const auto task_in = [&](Place place) {
    return GemmTask{a.matrix(place),
                    b.matrix(place),
                    c.matrix(place),
                    p.transpose_a,
                    p.transpose_b,
                    p.accumulate,
                    p.bias ? bias.at<float>(place) : nullptr,
                    p.of_bf16};
  };
  const Prepared product = prepare_model_task(task_in(Place::kDevice), ledger);
  const Stream stream;
  product.launch(stream);
  stream.synchronize();
  auto got = c.downloaded();
  Matrix result = c.shape();
  result.data = got.data();
  const auto reference = make_reference_model_kernel();
  const GemmTask whole = task_in(Place::kHost);
  double off = 0;
  for (int64_t i = 0; i < p.m; i += std::max<int64_t>(1, p.m / 7)) {
    GemmTask row = whole;
    row.a = p.transpose_a ? whole.a.columns_from(i, 1) : whole.a.rows_from(i, 1);
    row.c = whole.c.rows_from(i, 1);
    reference->run(row, 1);
    off = std::max(off, distance(stored_row(result, i), stored_row(whole.c, i)));
  }
  out.worst = std::max(out.worst, off);
  const auto is_wide = [](DType dtype) { return dtype == DType::kFloat32; };
  const Stored& t = p.stored;
  const bool of_floats = !p.of_bf16 && is_wide(t.a) && is_wide(t.b) && is_wide(t.c);
  const int rounded = of_floats ? 0 : is_wide(t.a) + is_wide(t.b) + !is_wide(t.c);
  // The library rounds a product to 16 bits before it adds it to a C of 16 bits: where `rounded` is
  // 1, errors reach 3.4e-3.
  const double added = p.accumulate && !is_wide(t.c) ? 1e-3 : 0;
  out.expect(
      off <= std::max(1e-5, rounded * 3e-3 + added) && (off > 1e-5 || !p.of_bf16),
      concat("product of ", p.m, " x ", p.n, " x ", p.k, p.transpose_a ? " T" : " N",
             p.transpose_b ? "T" : "N", p.accumulate ? " added" : "",
             p.bias ? " with a bias " : " ", p.of_bf16 ? "in bf16, " : "", to_string(p.stored.a),
             " by ", to_string(p.stored.b), " to ", to_string(p.stored.c), ": off by ", off));
}

}  // namespace

void check_gemm(Outcome& out, bool small) {
  if (left_out(why_cublaslt_absent())) return;
  const DType fp32 = DType::kFloat32, bf16 = DType::kBFloat16;
  std::vector<Product> shapes{{300, 40, 24}, {64, 136, 200}};
  if (!small) shapes.insert(shapes.end(), {{2048, 768, 3072}, {2048, 3072, 768}, {4096, 768, 256}});
  const Stored all[] = {{fp32, fp32, fp32}, {bf16, bf16, bf16}, {bf16, bf16, fp32},
                        {bf16, fp32, bf16}, {bf16, fp32, fp32},   // activations and weights
                        {fp32, bf16, fp32}, {fp32, fp32, bf16}};  // gradients of logits, of Q
  for (Product p : shapes)
    for (const Stored& stored : all)
      for (int way = 0; way < 12; ++way) {
        // Large shapes: only the products of a layer: x w, x w + bias, += x^T dy, += dy w^T.
        if (p.m > 1000 && way != 0 && way != 8 && way != 5 && way != 6) continue;
        p.transpose_a = way % 2 == 1;
        p.transpose_b = way / 2 % 2 == 1;
        p.accumulate = way / 4 == 1;
        p.bias = way / 4 == 2;
        p.stored = stored;
        check_product(out, p);
      }
  check_product(out, {.m = 64, .n = 136, .k = 200, .of_bf16 = true, .stored = {fp32, fp32, fp32}});
  // Inputs of different dtypes are refused, with the reason.
  MemoryLedger ledger;
  const auto refused = [&](DType dtype) {
    return Numbers::normal(8, 8, 1, dtype, ledger).matrix(Place::kDevice);
  };
  std::string why;
  try {
    prepare_gemm({refused(bf16), refused(fp32), refused(fp32)}, ledger);
  } catch (const Error& e) {
    why = e.what();
  }
  out.expect(why.find("both must be alike") != std::string::npos, concat("mixed inputs: ", why));
}

}  // namespace longnet::gpu
