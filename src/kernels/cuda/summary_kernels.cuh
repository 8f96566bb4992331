// Kernels of rows.cu that make rows, or sum them up, with a hash of each row. Neighbouring threads
// have a row together, each two groups of its lanes:
//
//   inputs, groups of eight:   head_dim 64: 4 threads a row, 64 rows of a block at once
//   outputs, groups of four:   head_dim 64: 8 threads a row; head_dim 80: 16 threads, where twelve
//                              have one group
#pragma once
#include "kernels/cuda/instructions.cuh"
#include "kernels/cuda/rows_kernels.cuh"

namespace longnet {
namespace {

using Hash = unsigned long long;

// A value of a thread's rows, which come in equal steps: the first row's, then the next one's.
template <int kShare, class T>
class InSteps {
 public:
  __device__ InSteps(T begin, int64_t per_row, const RowTile& tile)
      : at_(begin + (tile.first + int(threadIdx.x) / kShare) * per_row),
        step_(kThreads / kShare * per_row) {}
  __device__ T next() {
    const T now = at_;
    at_ += step_;
    return now;
  }

 private:
  T at_;
  int64_t step_;
};

// For each row of a tile part(is_row) by all its threads, whole warps in step, and
// done(row, sum of the parts) by one of them, which waits until each has such a row: what is to do
// once a row costs no more than what every thread does. A thread's parts are those of the rows of
// InSteps, in order.
template <int kShare, class Part, class Done>
__device__ void for_each_row(const RowTile& tile, Part part, Done done) {
  constexpr int kAtOnce = kThreads / kShare;
  const int at = int(threadIdx.x) % kShare, mine = int(threadIdx.x) / kShare;
  for (int first = 0; first < tile.count; first += kThreads) {
    Hash kept = 0;
#pragma unroll 1
    for (int n = 0; n < kShare && first + n * kAtOnce < tile.count; ++n) {
      const int i = first + n * kAtOnce + mine;
      const Hash sum = lane_sum<kShare>(part(i < tile.count));
      if (n == at) kept = sum;
    }
    const int i = first + at * kAtOnce + mine;
    if (i < tile.count) done(tile.first + i, kept);
  }
}

// ---- inputs ----

// unit_normal_like() without a conversion: the sum of the bytes fills the last bits of 2^23.
__device__ float unit_normal_of(uint32_t word) {
  constexpr float kShift = 8388608.0f;
  const uint32_t shifted = __dp4a(word, 0x01010101u, __float_as_uint(kShift));
  return (__uint_as_float(shifted) - (kShift + float(kMeanOfWord))) * kUnitOfWord;
}

// A group of eight lanes of a row as they are stored, in float or uint16_t (bf16), and the keys of
// their 64-bit words.
template <class Element>
struct Lanes {
  static constexpr int kWords = 2 * int(sizeof(Element));
  int index;
  uint32_t word[kWords];
  Hash key[kWords / 2];

  __device__ explicit Lanes(int group) : index(group) {
    for (int k = 0; k < kWords / 2; ++k) {
      key[k] = word_key(uint64_t(group * (kWords / 2) + k));
      asm volatile("" : "+l"(key[k]));  // kept: it is not computed again for each row
    }
  }
  __device__ void generate(const RowKey& row) {
    float x[8];
    for (int half = 0; half < 2; ++half) {
      const PhiloxBlock words = row_words(row, 2 * index + half);
      for (int k = 0; k < 4; ++k) x[4 * half + k] = unit_normal_of(words.word[k]);
    }
    for (int k = 0; k < kWords; ++k)
      if constexpr (kWords == 8)
        word[k] = __float_as_uint(x[k]);
      else
        word[k] = pack_pair(x[2 * k], x[2 * k + 1]);
  }
  __device__ void store(Element* at) const {
    for (int k = 0; k < kWords; k += 4)
      reinterpret_cast<uint4*>(at)[k / 4] = {word[k], word[k + 1], word[k + 2], word[k + 3]};
  }
  __device__ void load(const Element* at) {
    for (int k = 0; k < kWords; k += 4) {
      const uint4 four = reinterpret_cast<const uint4*>(at)[k / 4];
      word[k] = four.x, word[k + 1] = four.y, word[k + 2] = four.z, word[k + 3] = four.w;
    }
  }
  __device__ Hash hash() const {
    Hash sum = 0;
    for (int k = 0; k < kWords / 2; ++k)
      sum += hash_word(uint64_t{word[2 * k + 1]} << 32 | word[2 * k], key[k]);
    return sum;
  }
};

__device__ Hash named_hash(const FillRows& task, int64_t row, Hash words) {
  return mix64(
      words + row_name(uint32_t(task.tensor), task.head, task.first_token + row * task.token_step));
}

__device__ void add_to_total(Hash mine, Hash* total) {
  mine = lane_sum(mine);
  if (int(threadIdx.x) % kWarp == 0) atomicAdd(total, mine);
}

// `digest`, unless null, grows by the digest of what is stored. `groups`: of a row.
template <class Element, int kShare>
__global__ void __launch_bounds__(kThreads, 5)
    generate_kernel(const FillRows* tasks, const RowTile* tiles, int groups, uint64_t seed,
                    Hash* digest) {
  const RowTile tile = tiles[blockIdx.x];
  const FillRows task = tasks[tile.task];
  const int at = int(threadIdx.x) % kShare;
  Lanes<Element> lanes[2] = {Lanes<Element>(at), Lanes<Element>(at + kShare)};
  InSteps<kShare, int64_t> token(task.first_token, task.token_step, tile);
  InSteps<kShare, Element*> out(static_cast<Element*>(task.out) + at * 8, task.row_stride, tile);
  Hash mine = 0;
  for_each_row<kShare>(
      tile,
      [&](bool is_row) -> Hash {
        const RowKey key{seed, task.tensor, token.next(), task.head};
        Element* const row = out.next();
        Hash sum = 0;
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          lanes[k].generate(key);
          if (!is_row || lanes[k].index >= groups) continue;
          lanes[k].store(row + k * kShare * 8);
          sum += lanes[k].hash();
        }
        return sum;
      },
      [&](int64_t row, Hash words) { mine += named_hash(task, row, words); });
  if (digest != nullptr) add_to_total(mine, digest);
}

template <class Element, int kShare>
__global__ void __launch_bounds__(kThreads)
    digest_kernel(const FillRows* tasks, const RowTile* tiles, int groups, Hash* digest) {
  const RowTile tile = tiles[blockIdx.x];
  const FillRows task = tasks[tile.task];
  const int at = int(threadIdx.x) % kShare;
  Lanes<Element> lanes[2] = {Lanes<Element>(at), Lanes<Element>(at + kShare)};
  InSteps<kShare, const Element*> from(static_cast<const Element*>(task.out) + at * 8,
                                       task.row_stride, tile);
  Hash mine = 0;
  for_each_row<kShare>(
      tile,
      [&](bool is_row) -> Hash {
        const Element* const row = from.next();
        Hash sum = 0;
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          if (!is_row || lanes[k].index >= groups) continue;
          lanes[k].load(row + k * kShare * 8);
          sum += lanes[k].hash();
        }
        return sum;
      },
      [&](int64_t row, Hash words) { mine += named_hash(task, row, words); });
  add_to_total(mine, digest);
}

// ---- outputs ----

// A thread's running summary of an output: its lanes of every row, and whole rows (LSE, digest).
class SeenOutput {
 public:
  // A row with a NaN has no sums or extrema.
  __device__ void add(float4 x) {
    sum_ += (double(x.x) + double(x.y)) + (double(x.z) + double(x.w));
    for (const float y : {x.x, x.y, x.z, x.w}) {
      squares_ = fma(double(y), double(y), squares_);
      low_ = fminf(low_, y);
      high_ = fmaxf(high_, y);
    }
  }
  __device__ void add_nans(int count) { nans_ += count; }
  __device__ void add_row(Hash hash, float lse) {
    digest_ += hash;
    nans_ += isnan(lse) ? 1 : 0;
    absent_ += lse == -INFINITY ? 1 : 0;
    if (!isnan(lse) && lse != -INFINITY) lse_sum_ += lse;
  }
  // Returns the summary of all lanes of the warp.
  __device__ OutputSummary of_warp() const {
    return {.absent_rows = lane_sum(absent_),
            .nan_values = lane_sum(nans_),
            .sum = lane_sum(sum_),
            .sum_squares = lane_sum(squares_),
            .min = over_lanes(low_, [](float a, float b) { return fminf(a, b); }),
            .max = over_lanes(high_, [](float a, float b) { return fmaxf(a, b); }),
            .lse_sum = lane_sum(lse_sum_),
            .digest = lane_sum(digest_)};
  }

 private:
  int absent_ = 0, nans_ = 0;
  double sum_ = 0, squares_ = 0, lse_sum_ = 0;
  float low_ = INFINITY, high_ = -INFINITY;
  Hash digest_ = 0;
};

// Four neighbours of a row of O, of floats or of 16 bits.
__device__ float4 four_of(const float* row, int four, bool short_o) {
  if (!short_o) return reinterpret_cast<const float4*>(row)[four];
  const uint2 words = reinterpret_cast<const uint2*>(row)[four];
  const float2 a = widened({words.x}), b = widened({words.y});
  return {a.x, a.y, b.x, b.y};
}

__device__ float sum_of(float4 x) { return (x.x + x.y) + (x.z + x.w); }

__device__ int count_nans(float4 x) {
  return (isnan(x.x) ? 1 : 0) + (isnan(x.y) ? 1 : 0) + (isnan(x.z) ? 1 : 0) + (isnan(x.w) ? 1 : 0);
}

// Threads have two groups of four floats, kShare apart. `fours`: such groups of a row.
template <int kShare>
__global__ void __launch_bounds__(kThreads, 4)  // as many blocks as it takes to hide loads
    summarize_kernel(const OutputRows* tasks, const RowTile* tiles, int fours,
                     OutputSummary* summaries) {
  __shared__ alignas(OutputSummary) unsigned char shared[kWarps * sizeof(OutputSummary)];
  auto* const of_warp = reinterpret_cast<OutputSummary*>(shared);
  const RowTile tile = tiles[blockIdx.x];
  const OutputRows& task = tasks[tile.task];  // the rest is read once for each thread's own row
  const int at = int(threadIdx.x) % kShare;
  const bool has[2] = {at < fours, at + kShare < fours};
  // The next row is on its way while one is summed up.
  InSteps<kShare, const float*> o(task.o, task.o_stride, tile);
  const bool short_o = task.dtype == DType::kBFloat16;
  int left = tile.count - int(threadIdx.x) / kShare;
  float4 ahead[2];
  const auto load = [&] {
    const float* const from = o.next();
    for (int k = 0; k < 2; ++k)
      ahead[k] = left > 0 && has[k] ? four_of(from, at + k * kShare, short_o) : float4{};
    left -= kThreads / kShare;
  };
  load();
  Hash key[4];
  for (int k = 0; k < 4; ++k)
    key[k] = has[k / 2] ? word_key(uint64_t(2 * (at + k / 2 * kShare) + k % 2)) : 0;
  SeenOutput seen;
  for_each_row<kShare>(
      tile,
      [&](bool is_row) {
        const float4 x[2] = {ahead[0], ahead[1]};
        load();
        int nans = 0;
        // Infinities of both signs have that sum, too.
        if (__any_sync(0xFFFFFFFFu, isnan(sum_of(x[0]) + sum_of(x[1])))) {
          nans = count_nans(x[0]) + count_nans(x[1]);
          seen.add_nans(nans);
          nans = lane_sum<kShare>(nans);
        }
        Hash hash = 0;
        for (int k = 0; k < 2; ++k) {
          if (nans == 0 && is_row && has[k]) seen.add(x[k]);
          const auto word = [](float low, float high) {
            return uint64_t{__float_as_uint(high)} << 32 | __float_as_uint(low);
          };
          hash += hash_word(word(x[k].x, x[k].y), key[2 * k]);
          hash += hash_word(word(x[k].z, x[k].w), key[2 * k + 1]);
        }
        return hash;
      },
      [&](int64_t row, Hash words) {
        const float lse = task.lse == nullptr ? 0.0f : task.lse[row * task.lse_stride];
        seen.add_row(output_row_hash(words, __float_as_uint(lse), task.head,
                                     task.first_token + row * task.token_step),
                     lse);
      });
  OutputSummary all = seen.of_warp();
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = all;
  __syncthreads();
  if (threadIdx.x > 0) return;
  all.rows = tile.count;
  for (int w = 1; w < kWarps; ++w) all.add(of_warp[w]);
  summaries[blockIdx.x] = all;
}

}  // namespace
}  // namespace longnet
