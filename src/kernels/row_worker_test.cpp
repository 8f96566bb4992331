// Tests the vectorised generator against the plain one, bit for bit, on every instruction set, and
// that digests and sums depend on the data and on nothing else.
#include "kernels/row_worker.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>
#include <vector>

#include "kernels/cpu/machine_peak.h"

namespace longnet {
namespace {

std::vector<std::byte> filled(FillRows task, const RowFormat& f, int threads, uint64_t* digest) {
  std::vector<std::byte> out(size_t(task.rows * task.row_stride * dtype_bytes(f.dtype)),
                             std::byte{0x5A});
  task.out = out.data();
  make_cpu_row_worker()->fill({&task, 1}, f, threads, digest);
  return out;
}

TEST(RowWorker, FillsRowsOfTheGenerator) {
  for (const std::string& target : simd_targets()) {
    const ScopedSimdTarget use(target);
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
      for (const int64_t d : {8, 24, 48, 64, 80, 128, 256}) {
        const RowFormat f{.seed = 0x123456789ABCDEFu, .head_dim = d, .dtype = dtype};
        const FillRows task{.tensor = Tensor::kValue,
                            .head = 11,
                            .first_token = (int64_t{1} << 32) - 5,  // both words of the counter
                            .token_step = 3,
                            .rows = 9,
                            .row_stride = d + 8};
        const auto out = filled(task, f, 1, nullptr);
        std::vector<std::byte> expected(out.size(), std::byte{0x5A});  // gaps stay untouched
        for (int64_t i = 0; i < task.rows; ++i) {
          const RowKey key{f.seed, task.tensor, task.first_token + 3 * i, 11};
          std::byte* const at = expected.data() + i * task.row_stride * dtype_bytes(dtype);
          if (dtype == DType::kFloat32)
            generate_row(key, d, reinterpret_cast<float*>(at));
          else
            generate_row(key, d, reinterpret_cast<uint16_t*>(at));
        }
        EXPECT_EQ(std::memcmp(out.data(), expected.data(), out.size()), 0)
            << target << " d=" << d << " " << to_string(dtype);
      }
  }
}

TEST(RowWorker, InputDigestDependsOnRowsAndNotOnTheirOrder) {
  const RowFormat f{.head_dim = 40, .dtype = DType::kBFloat16};
  const FillRows all{.head = 2, .first_token = 7, .rows = 3000, .row_stride = 40};
  uint64_t whole = 0;
  auto rows = filled(all, f, 1, &whole);
  uint64_t parts = 0;  // strided halves, on two threads, on every instruction set
  for (const std::string& target : simd_targets()) {
    const ScopedSimdTarget use(target);
    parts = 0;
    for (const int64_t first : {8, 7}) {
      FillRows half = all;
      half.first_token = first, half.token_step = 2, half.rows = 1500;
      filled(half, f, 2, &parts);
    }
    EXPECT_EQ(parts, whole) << target;
  }
  FillRows task = all;
  task.out = rows.data();
  const auto worker = make_cpu_row_worker();
  EXPECT_EQ(worker->digest({&task, 1}, f, 2), whole);
  for (const size_t byte : {size_t(0), rows.size() / 2, rows.size() - 1}) {
    rows[byte] ^= std::byte{1};
    EXPECT_NE(worker->digest({&task, 1}, f, 1), whole) << byte;
    rows[byte] ^= std::byte{1};
  }
  std::swap_ranges(rows.begin(), rows.begin() + 80, rows.begin() + 80);  // two rows change places
  EXPECT_NE(worker->digest({&task, 1}, f, 1), whole);
  task.head = 3;
  EXPECT_NE(worker->digest({&task, 1}, f, 1), whole);
}

TEST(RowWorker, RowsHaveNamesOfTheirOwn) {
  std::set<uint64_t> names;
  for (const uint32_t tensor : {0u, 1u, 2u, kOutputTensor, uint32_t(Tensor::kGradOut)})
    for (int64_t head = 0; head < 16; ++head)
      for (int64_t token = 0; token < 16; ++token) names.insert(row_name(tensor, head, token));
  EXPECT_EQ(names.size(), 5u * 16 * 16);
}

struct WorkerOutput {
  std::vector<float> o, lse;
  OutputSummary summary(int64_t d, int threads) const {
    const OutputRows rows{.o = o.data(),
                          .lse = lse.data(),
                          .o_stride = d,
                          .lse_stride = 1,
                          .rows = int64_t(lse.size())};
    OutputSummary s;
    make_cpu_row_worker()->summarize({&rows, 1}, d, threads, {&s, 1});
    return s;
  }
};

TEST(RowWorker, SummarizesAnOutput) {
  const int64_t d = 24, n = 2500;
  WorkerOutput out{std::vector<float>(size_t(n * d)), std::vector<float>(size_t(n), 0.5f)};
  double sum = 0, squares = 0;
  for (size_t i = 0; i < out.o.size(); ++i) {
    out.o[i] = float(std::sin(double(i)));
    sum += double(out.o[i]);
    squares += double(out.o[i]) * double(out.o[i]);
  }
  out.o[777] = -3;
  out.o[778] = 4;
  sum += -3 - std::sin(777.) + 4 - std::sin(778.);
  squares += 9 + 16 - std::pow(std::sin(777.), 2) - std::pow(std::sin(778.), 2);
  out.lse[3] = -std::numeric_limits<float>::infinity();
  const OutputSummary s = out.summary(d, 1);
  EXPECT_EQ(s.rows, n);
  EXPECT_EQ(s.absent_rows, 1);
  EXPECT_EQ(s.nan_values, 0);
  EXPECT_EQ(s.min, -3);
  EXPECT_EQ(s.max, 4);
  EXPECT_EQ(s.lse_sum, 0.5 * (n - 1));
  EXPECT_NEAR(s.sum, sum, 1e-3);
  EXPECT_NEAR(s.sum_squares, squares, 1e-3);
  EXPECT_EQ(out.summary(d, 2), s);  // every bit, on any number of threads
  for (const std::string& target : simd_targets()) {
    const ScopedSimdTarget use(target);
    EXPECT_EQ(out.summary(d, 1).digest, s.digest) << target;
  }
  WorkerOutput other = out;
  other.lse[5] = std::nextafter(0.5f, 1.0f);
  EXPECT_NE(other.summary(d, 1).digest, s.digest);
  other = out;
  other.o[size_t(n * d) - 1] = -other.o[size_t(n * d) - 1];
  EXPECT_NE(other.summary(d, 1).digest, s.digest);
}

TEST(RowWorker, PoisonIsNaNAndIsCounted) {
  const int64_t d = 16, n = 300;
  WorkerOutput out{std::vector<float>(size_t(n * d)), std::vector<float>(size_t(n))};
  const auto worker = make_cpu_row_worker();
  for (auto* values : {&out.o, &out.lse})
    worker->poison(std::as_writable_bytes(std::span(*values)), 2);
  EXPECT_EQ(out.summary(d, 1).nan_values, n * (d + 1));
  std::fill(out.o.begin(), out.o.end() - 1, 0.0f);
  std::fill(out.lse.begin(), out.lse.end(), 0.0f);
  EXPECT_EQ(out.summary(d, 2).nan_values, 1);
}

}  // namespace
}  // namespace longnet
