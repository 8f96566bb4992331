// gpu_check: digests of rows and summaries of outputs.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "core/check.h"
#include "gpu/check.h"
#include "kernels/cuda/rows.h"

namespace longnet::gpu {

namespace {

// Returns a row's hash by the definition in row_worker.h, one word after another.
uint64_t words_hash(const std::byte* row, int64_t bytes) {
  uint64_t hash = 0;
  for (int64_t k = 0; k < bytes / 8; ++k) {
    uint64_t word = 0;
    std::memcpy(&word, row + 8 * k, 8);
    hash += hash_word(word, word_key(uint64_t(k)));
  }
  return hash;
}

void check_digest(Outcome& out, int64_t d, DType dtype, int64_t rows) {
  MemoryLedger ledger;
  const int64_t stride = d + 8, bytes = dtype_bytes(dtype);
  DeviceBuffer buffer(ledger, "rows", 2 * rows * stride * bytes);
  const FillRows first{.tensor = Tensor::kValue,
                       .head = 3,
                       .first_token = (int64_t{1} << 32) - 7,
                       .token_step = 5,
                       .rows = rows,
                       .out = buffer.data(),
                       .row_stride = stride};
  FillRows second = first;
  second.head = 4;
  second.rows = rows / 3;
  second.out = buffer.data() + rows * stride * bytes;
  std::vector<std::byte> beside(70000);
  DeviceBuffer memory(ledger, "poisoned", int64_t(beside.size()));
  memory.upload(beside);
  const std::span<std::byte> poisoned[] = {memory.bytes().subspan(16, 40021),
                                           memory.bytes().subspan(50000, 7)};
  for (const std::span<std::byte> part : poisoned)
    std::fill_n(beside.begin() + (part.data() - memory.data()), part.size(), std::byte{0xFF});
  uint64_t got = 0, expected = 0;
  make_device_row_worker()->fill(std::array{first, second},
                                 {.seed = 9, .head_dim = d, .dtype = dtype}, 1, &got, poisoned);
  for (const FillRows& task : {first, second}) {
    const auto host = download<std::byte>(task.out, task.rows * stride * bytes);
    for (int64_t i = 0; i < task.rows; ++i)
      expected += mix64(words_hash(host.data() + i * stride * bytes, d * bytes) +
                        row_name(uint32_t(task.tensor), task.head, task.first_token + 5 * i));
  }
  out.expect(got == expected, concat("digest of rows of ", d, " ", to_string(dtype)));
  out.expect(download<std::byte>(memory.data(), memory.size()) == beside, "poison beside rows");
}

void check_summary(Outcome& out, int64_t d, DType dtype, int64_t rows) {
  MemoryLedger ledger;
  const int64_t stride = 2 * d;
  std::vector<float> o(size_t(rows * stride)), lse(size_t(2 * rows), 0.25f);
  for (size_t i = 0; i < o.size(); ++i) o[i] = float(std::sin(double(i)));
  for (const int64_t row :
       {7, 13})  // the first and the second value of a lane; such a row is in no sum
    o[size_t(row * stride + row / 13)] = NAN;
  std::vector<uint16_t> short_o;
  for (float& x : o) {
    if (dtype == DType::kFloat32) break;
    short_o.push_back(std::isnan(x) ? 0x7FC0 : bf16_bits(x));
    x = bf16_value(short_o.back());
  }
  lse[2 * 9] = -INFINITY;
  lse[2 * 11] = NAN;
  OutputSummary expected;
  for (int64_t i = 0; i < rows; ++i) {
    const float* const row = o.data() + i * stride;
    OutputSummary of_row{.rows = 1};
    for (int64_t c = 0; c < d; ++c) {
      of_row.sum += double(row[c]);
      of_row.sum_squares += double(row[c]) * double(row[c]);
      of_row.min = std::fmin(of_row.min, double(row[c]));
      of_row.max = std::fmax(of_row.max, double(row[c]));
    }
    if (i == 7 || i == 13) of_row = {.rows = 1, .nan_values = 1};
    of_row.nan_values += i == 11;
    of_row.absent_rows = i == 9;
    if (i != 9 && i != 11) of_row.lse_sum = 0.25;
    uint32_t bits = 0;
    std::memcpy(&bits, &lse[size_t(2 * i)], 4);
    of_row.digest = output_row_hash(words_hash(reinterpret_cast<const std::byte*>(row), 4 * d),
                                    bits, 2, 100 + 3 * i);
    expected.add(of_row);
  }
  DeviceBuffer o_buffer(ledger, "o", int64_t(o.size() * 4)), lse_buffer(ledger, "lse", rows * 8);
  const float* const rows_o = dtype == DType::kFloat32
                                  ? o_buffer.upload(o)
                                  : reinterpret_cast<const float*>(o_buffer.upload(short_o));
  const OutputRows task{.o = rows_o,
                        .lse = lse_buffer.upload(lse),
                        .o_stride = dtype == DType::kFloat32 ? stride : stride / 2,
                        .lse_stride = 2,
                        .head = 2,
                        .first_token = 100,
                        .token_step = 3,
                        .rows = rows,
                        .dtype = dtype};
  OutputSummary got;
  make_device_row_worker()->summarize({&task, 1}, d, 1, {&got, 1});
  const bool counts = got.rows == expected.rows && got.absent_rows == expected.absent_rows &&
                      got.nan_values == expected.nan_values && got.digest == expected.digest;
  const bool sums = std::abs(got.sum - expected.sum) < 1e-6 &&
                    std::abs(got.sum_squares - expected.sum_squares) < 1e-6 &&
                    got.min == expected.min && got.max == expected.max &&
                    got.lse_sum == expected.lse_sum;
  out.expect(counts && sums, concat("summary of rows of ", d, " ", to_string(dtype)));
}

}  // namespace

void check_summaries(Outcome& out, bool small) {
  for (const int64_t d : {8, 24, 64, 128, 256}) {
    // Tiles have 1024 rows: several of them once, where `small`.
    const int64_t rows = small && d != 24 ? 70 : 1500;
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      check_digest(out, d, dtype, rows);
      check_summary(out, d, dtype, rows);
    }
  }
}

}  // namespace longnet::gpu
