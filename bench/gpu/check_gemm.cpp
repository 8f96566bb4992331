// gpu_check: products of matrices by cuBLASLt, sampled rows of them against those in double.
#include <algorithm>
#include <bit>
#include <cstring>

#include "core/check.h"
#include "gpu/check.h"
#include "kernels/cuda/device_gemm.h"

namespace longnet::gpu {
namespace {

// A matrix of normal numbers with a gap behind each row, on the host and on the device.
struct Values {
  std::vector<std::byte> bytes;
  DeviceBuffer buffer;
  Matrix host{}, device{};

  Values(int64_t rows, int64_t cols, uint32_t seed, DType dtype, MemoryLedger& ledger) {
    const int64_t stride = cols + 8, each = dtype_bytes(dtype);
    bytes.resize(size_t(rows * stride * each));
    PhiloxBlock words{};
    for (int64_t i = 0; i < rows * stride; ++i) {
      if (i % 4 == 0) words = philox4x32_10({{uint32_t(i), 1, 2, 3}}, seed, 5);
      const float x = unit_normal_like(words.word[i % 4]);
      const uint32_t bits = each == 4 ? std::bit_cast<uint32_t>(x) : bf16_bits(x);
      std::memcpy(&bytes[size_t(i * each)], &bits, size_t(each));  // little-endian, as all of CUDA
    }
    buffer = DeviceBuffer(ledger, "matrix", int64_t(bytes.size()));
    host = {bytes.data(), rows, cols, stride, dtype};
    device = {buffer.upload(bytes), rows, cols, stride, dtype};
  }
};

// Row i as it is stored, and the gap behind it.
std::vector<float> stored_row(const Matrix& m, int64_t i) {
  std::vector<float> out;
  for (int64_t at = i * m.stride; at < (i + 1) * m.stride; ++at)
    out.push_back(m.dtype == DType::kFloat32
                      ? static_cast<const float*>(m.data)[at]
                      : bf16_value(static_cast<const uint16_t*>(m.data)[at]));
  return out;
}

struct Product {
  int64_t m, n, k;
  bool transpose_a = false, transpose_b = false, accumulate = false;
  DType inputs = DType::kFloat32, result = DType::kFloat32;
};

void check_product(Outcome& out, const Product& p) {
  MemoryLedger ledger;
  const auto [a_rows, a_cols] = p.transpose_a ? std::pair(p.k, p.m) : std::pair(p.m, p.k);
  const auto [b_rows, b_cols] = p.transpose_b ? std::pair(p.n, p.k) : std::pair(p.k, p.n);
  const Values a(a_rows, a_cols, 1, p.inputs, ledger), b(b_rows, b_cols, 2, p.inputs, ledger);
  const Values c(p.m, p.n, 3, p.result, ledger);
  const auto task_on = [&](const Matrix& x, const Matrix& y, const Matrix& into) {
    return GemmTask{x, y, into, p.transpose_a, p.transpose_b, p.accumulate};
  };
  const Prepared product = prepare_gemm(task_on(a.device, b.device, c.device), ledger);
  const Stream stream;
  product.launch(stream);
  stream.synchronize();
  auto got = download<std::byte>(c.buffer.data(), c.buffer.size());
  Matrix result = c.host;
  result.data = got.data();
  const auto reference = make_reference_model_kernel();
  double off = 0;
  for (int64_t i = 0; i < p.m; i += std::max<int64_t>(1, p.m / 7)) {
    const Matrix of_a = p.transpose_a ? a.host.columns_from(i, 1) : a.host.rows_from(i, 1);
    reference->run(task_on(of_a, b.host, c.host.rows_from(i, 1)), 1);
    off = std::max(off, distance(stored_row(result, i), stored_row(c.host, i)));
  }
  out.worst = std::max(out.worst, off);
  out.expect(off <= (p.result == DType::kFloat32 ? 1e-5 : 4e-3),
             concat("product of ", p.m, " x ", p.n, " x ", p.k, p.transpose_a ? " T" : " N",
                    p.transpose_b ? "T" : "N", p.accumulate ? " added" : "", " ",
                    to_string(p.inputs), " to ", to_string(p.result), ": off by ", off));
}

}  // namespace

void check_gemm(Outcome& out, bool small) {
  if (left_out(why_cublaslt_absent())) return;
  const DType fp32 = DType::kFloat32, bf16 = DType::kBFloat16;
  std::vector<Product> shapes{{300, 40, 24}, {64, 136, 200}};
  if (!small) shapes.insert(shapes.end(), {{2048, 768, 3072}, {2048, 3072, 768}, {4096, 768, 256}});
  for (Product p : shapes)
    for (const auto& [inputs, result] : {std::pair{fp32, fp32}, {bf16, bf16}, {bf16, fp32}})
      for (int way = 0; way < 8; ++way) {
        p.transpose_a = way % 2 == 1;
        p.transpose_b = way / 2 % 2 == 1;
        p.accumulate = way / 4 == 1;
        p.inputs = inputs;
        p.result = result;
        check_product(out, p);
      }
  // What is refused, with the reason.
  MemoryLedger ledger;
  const Values a(8, 8, 1, bf16, ledger), b(8, 8, 2, fp32, ledger), c(8, 8, 3, fp32, ledger);
  std::string why;
  try {
    prepare_gemm({a.device, b.device, c.device}, ledger);
  } catch (const Error& e) {
    why = e.what();
  }
  out.expect(why.find("both must be alike") != std::string::npos, concat("mixed inputs: ", why));
}

}  // namespace longnet::gpu
