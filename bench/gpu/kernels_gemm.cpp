#include "gpu/kernels_gemm.h"

#include <cstdio>
#include <string>

#include "core/check.h"
#include "kernels/cuda/device_model.h"

namespace longnet::gpu {
namespace {

struct Product {
  const char* name;
  int64_t m, n, k;
  bool transpose_a = false, transpose_b = false;
};

// FLOP/s. Matrices are dense; c is stored as the others are, the gradient of a weight in fp32.
double rate_of(const Product& p, DType dtype, bool quick, Json& json) {
  MemoryLedger ledger;
  const DType stored = p.transpose_a ? DType::kFloat32 : dtype;
  const DeviceBuffer a = normal_numbers(p.m * p.k, dtype, ledger);
  const DeviceBuffer b = normal_numbers(p.k * p.n, dtype, ledger);
  const DeviceBuffer c(ledger, "matrix", p.m * p.n * dtype_bytes(stored));
  const auto matrix = [](const DeviceBuffer& at, int64_t rows, int64_t cols, DType type) {
    return Matrix{at.data(), rows, cols, cols, type};
  };
  MemoryLedger scratch;
  const Prepared product =
      prepare_gemm({.a = p.transpose_a ? matrix(a, p.k, p.m, dtype) : matrix(a, p.m, p.k, dtype),
                    .b = p.transpose_b ? matrix(b, p.n, p.k, dtype) : matrix(b, p.k, p.n, dtype),
                    .c = matrix(c, p.m, p.n, stored),
                    .transpose_a = p.transpose_a,
                    .transpose_b = p.transpose_b},
                   scratch);
  const Stream stream;
  const DeviceTiming timing = time_on_device(stream, {.samples = quick ? 5 : 10, .budget_s = 1.5},
                                             [&] { product.launch(stream); });
  const double rate = 2.0 * double(p.m) * double(p.n) * double(p.k) / timing.median_s;
  json.set("flops_per_s", rate)
      .set("scratch_bytes", scratch.peak_bytes())
      .set("timing", timing_json(timing));
  return rate;
}

}  // namespace

size_t time_products(int64_t tokens, bool quick, std::vector<Json>& points) {
  size_t failed = 0;
  if (!why_cublaslt_absent().empty()) return failed;
  for (const DType dtype : {DType::kBFloat16, DType::kFloat32})
    for (const Product& p : {Product{"x w", tokens, 3072, 768},
                             {"x w^T", tokens, 768, 3072, false, true},
                             {"x^T dy", 768, 3072, tokens, true, false}}) {
      Json json = Json()
                      .set("section", "gemm")
                      .set("kernel", "cublaslt")
                      .set("product", p.name)
                      .set("dtype", to_string(dtype))
                      .set("m", p.m)
                      .set("n", p.n)
                      .set("k", p.k);
      note_work(concat("gemm ", p.name, " ", to_string(dtype)));
      std::printf("%-11s %-14s %s %d x %d x %d", "gemm", p.name,
                  std::string(to_string(dtype)).c_str(), int(p.m), int(p.n), int(p.k));
      try {
        std::printf(" %9.1f TFLOP/s\n", rate_of(p, dtype, quick, json) * 1e-12);
      } catch (const std::exception& e) {
        ++failed;
        json.set("status", "error").set("reason", e.what());
        std::printf("  %s\n", e.what());
      }
      std::fflush(stdout);
      points.push_back(json);
    }
  return failed;
}

}  // namespace longnet::gpu
