// Gradients of an embedding: rows of equal tokens are added in their order, without atomics. Rows
// are sorted by token (a counting sort of eight bits at a time that keeps the order of equals); the
// sorted list is cut into chunks, whose runs of equal tokens are summed; runs across chunks are
// joined afterwards.
//
//   tokens 5 2 5 5   rows by token 1 | 0 2 3   chunks of two: (2: row 1, 5: row 0) (5: rows 2, 3)
#include "kernels/cuda/model_views.cuh"

namespace longnet {
namespace {

constexpr int kTile = EmbedScratch::kTile, kDigits = EmbedScratch::kDigits, kScanThreads = 1024;
constexpr int kSumThreads = 128, kRowsAtOnce = 4, kJoinAtOnce = 8;
constexpr int64_t kMostOfChunk = EmbedScratch::kMostOfChunk;

// The list that a pass of the sort, or the sum of runs, reads: the task's tokens (rows null), or
// the last pass's result.
struct Keys {
  const int32_t *token, *row;
  int64_t count, table_rows;
  int shift;  // the digit's

  __device__ int32_t token_at(int64_t i) const {
    const int32_t t = token[i];
    return t >= 0 && t < table_rows ? t : 0;
  }
  __device__ int32_t row_at(int64_t i) const {
    if (row != nullptr) return row[i];
    return token[i] >= 0 && token[i] < table_rows ? int32_t(i) : -1;
  }
};

// The digits of a tile's keys; kDigits behind its end.
__device__ int load_digits(const Keys& keys, int32_t (&digits)[kTile]) {
  const int64_t first = int64_t{blockIdx.x} * kTile, left = keys.count - first;
  const int count = int(left < kTile ? left : kTile);
  for (int i = int(threadIdx.x); i < kTile; i += kDigits)
    digits[i] = i < count ? keys.token_at(first + i) >> keys.shift & (kDigits - 1) : kDigits;
  __syncthreads();
  return count;
}

// counts[digit][tile]: a thread counts one digit.
__global__ void __launch_bounds__(kDigits) count_digits_kernel(Keys keys, uint32_t* counts) {
  __shared__ alignas(16) int32_t digits[kTile];
  load_digits(keys, digits);
  const int mine = int(threadIdx.x);
  uint32_t count = 0;
  for (int i = 0; i < kTile; i += 4) {
    const int4 four = *reinterpret_cast<const int4*>(digits + i);
    count += (four.x == mine) + (four.y == mine) + (four.z == mine) + (four.w == mine);
  }
  counts[int64_t{mine} * gridDim.x + blockIdx.x] = count;
}

// counts become the sums of those before them. One block; their number is a multiple of four.
__global__ void __launch_bounds__(kScanThreads) scan_kernel(uint4* counts, int64_t fours) {
  __shared__ uint32_t sums[kScanThreads / kWarp];
  uint32_t before = 0;
  for (int64_t begin = 0; begin < fours; begin += kScanThreads) {
    const int64_t i = begin + threadIdx.x;
    const uint4 c = i < fours ? counts[i] : uint4{0, 0, 0, 0};
    const uint32_t own = c.x + c.y + c.z + c.w;
    uint32_t upto = own;  // over the lanes up to this one
    const int lane = int(threadIdx.x) % kWarp, warp = int(threadIdx.x) / kWarp;
    for (int offset = 1; offset < kWarp; offset *= 2) {
      const uint32_t other = __shfl_sync(0xFFFFFFFFu, upto, lane >= offset ? lane - offset : lane);
      if (lane >= offset) upto += other;
    }
    __syncthreads();  // the sums of the last step have been read
    if (lane == kWarp - 1) sums[warp] = upto;
    __syncthreads();
    uint32_t at = before + upto - own;
    for (int w = 0; w < kScanThreads / kWarp; ++w) {
      if (w < warp) at += sums[w];
      before += sums[w];
    }
    if (i < fours) counts[i] = {at, at + c.x, at + c.x + c.y, at + c.x + c.y + c.z};
  }
}

// A thread places the keys with its digit, in their order.
__global__ void __launch_bounds__(kDigits)
    place_keys_kernel(Keys keys, const uint32_t* offsets, KeyList into) {
  __shared__ alignas(16) int32_t digits[kTile];
  const int64_t first = int64_t{blockIdx.x} * kTile;
  const int count = load_digits(keys, digits), mine = int(threadIdx.x);
  int64_t at = offsets[int64_t{mine} * gridDim.x + blockIdx.x];
  for (int i = 0; i < count; ++i) {
    if (digits[i] != mine) continue;
    into.token[at] = keys.token_at(first + i);
    into.row[at++] = keys.row_at(first + i);
  }
}

struct SumShape {
  int64_t count;  // number of keys
  int chunk, groups;
  KeyList keys;
  float *head,
      *tail;  // [chunk][columns]: of a run that began before the chunk; that goes on behind
  int slices() const { return (groups + kSumThreads - 1) / kSumThreads; }
};

template <class Table>
__device__ void add_to_table(const Table& table, int64_t row, int group,
                             const float (&sum)[Table::kWidth]) {
  float v[Table::kWidth];
  load_group(table, row, group, v);
#pragma unroll
  for (int k = 0; k < Table::kWidth; ++k) v[k] += sum[k];
  table.store(row, group, v);
}

template <int kWidth>
__device__ void keep(float* at, const float (&sum)[kWidth]) {
#pragma unroll
  for (int k = 0; k < kWidth; ++k) at[k] = sum[k];
}

// Sums of the runs of a chunk. A block has kSumThreads groups of columns.
template <class Rows, class Table>
__global__ void __launch_bounds__(kSumThreads)
    sum_runs_kernel(Rows x, Table table, SumShape shape, int slices) {
  // Tokens of the chunk's keys, with one entry before and one after them (-1: no key there), and
  // the keys' rows.
  __shared__ int32_t tokens[kMostOfChunk + 2], rows[kMostOfChunk];
  const int64_t chunk = blockIdx.x / unsigned(slices), first = chunk * shape.chunk;
  const int64_t left = shape.count - first;
  const int count = int(left < shape.chunk ? left : shape.chunk);
  for (int i = int(threadIdx.x); i < count + 2; i += kSumThreads) {
    const int64_t at = first + i - 1;
    tokens[i] = at >= 0 && at < shape.count ? shape.keys.token[at] : -1;
    if (i < count) rows[i] = shape.keys.row[first + i];
  }
  __syncthreads();
  const int group = int(blockIdx.x) % slices * kSumThreads + int(threadIdx.x);
  if (group >= shape.groups) return;
  const int64_t place = (chunk * shape.groups + group) * Rows::kWidth;
  float sum[Rows::kWidth] = {};
  bool begins = tokens[0] != tokens[1];
  for (int i = 0; i < count; i += kRowsAtOnce) {
    typename Rows::Raw raw[kRowsAtOnce];
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r)
      raw[r] =
          i + r < count && rows[i + r] >= 0 ? x.load(rows[i + r], group) : typename Rows::Raw{};
#pragma unroll
    for (int r = 0; r < kRowsAtOnce; ++r) {
      if (i + r >= count) break;
      float v[Rows::kWidth];
      Rows::widen(raw[r], v);
#pragma unroll
      for (int k = 0; k < Rows::kWidth; ++k) sum[k] += v[k];
      const int32_t token = tokens[i + r + 1];
      const bool ends = tokens[i + r + 2] != token;
      if (!ends && i + r + 1 < count) continue;
      if (begins && ends)
        add_to_table(table, token, group, sum);
      else
        keep((begins ? shape.tail : shape.head) + place, sum);
      begins = true;
      for (float& s : sum) s = 0;
    }
  }
}

// Adds up the run that begins in a chunk and goes on behind it, if there is one.
template <class Table>
__global__ void __launch_bounds__(kSumThreads)
    join_runs_kernel(Table table, SumShape shape, int slices) {
  const int64_t chunk = blockIdx.x / unsigned(slices), first = chunk * shape.chunk;
  const int64_t next = first + shape.chunk;
  const int group = int(blockIdx.x) % slices * kSumThreads + int(threadIdx.x);
  if (next >= shape.count || group >= shape.groups) return;
  const int32_t* const tokens = shape.keys.token;
  const int32_t token = tokens[next - 1];
  const bool began_before = first > 0 && tokens[first - 1] == token;
  if (tokens[next] != token || began_before) return;
  const auto sums_of = [&](const float* sums, int64_t of_chunk, float(&v)[Table::kWidth]) {
    load_columns(sums + of_chunk * shape.groups * Table::kWidth, group, v);
  };
  float sum[Table::kWidth];
  sums_of(shape.tail, chunk, sum);
  bool more = true;
  for (int64_t c = chunk + 1; more; c += kJoinAtOnce) {
    float v[kJoinAtOnce][Table::kWidth];
    bool goes_on[kJoinAtOnce];
#pragma unroll
    for (int n = 0; n < kJoinAtOnce; ++n) {
      goes_on[n] = (c + n) * shape.chunk < shape.count && tokens[(c + n) * shape.chunk] == token;
      if (goes_on[n]) sums_of(shape.head, c + n, v[n]);
    }
#pragma unroll
    for (int n = 0; n < kJoinAtOnce; ++n) {
      more = more && goes_on[n];
      if (!more) break;
#pragma unroll
      for (int k = 0; k < Table::kWidth; ++k) sum[k] += v[n][k];
    }
  }
  add_to_table(table, token, group, sum);
}

// ---- the host's side ----

// Returns where the sorted list is.
KeyList prepare_sort(const EmbedBackwardTask& task, const EmbedScratch& at, Prepared& work) {
  Keys keys{task.tokens, nullptr, at.count, task.grad_table.rows, 0};
  KeyList sorted{};
  for (int pass = 0; pass == 0 || (task.grad_table.rows - 1) >> keys.shift > 0; ++pass) {
    sorted = at.lists[pass % 2];
    then_launch(work, at.tiles, kDigits, 0, "launch of count_digits", count_digits_kernel, keys,
                at.counts);
    then_launch(work, 1, kScanThreads, 0, "launch of scan", scan_kernel,
                reinterpret_cast<uint4*>(at.counts), at.tiles * (kDigits / 4));
    then_launch(work, at.tiles, kDigits, 0, "launch of place_keys", place_keys_kernel, keys,
                at.counts, sorted);
    keys.token = sorted.token, keys.row = sorted.row, keys.shift += 8;
  }
  return sorted;
}

}  // namespace

void prepare_task(const EmbedBackwardTask& task, std::byte* workspace, Prepared& work) {
  const Matrix &grad = task.grad_y, &into = task.grad_table;
  if (grad.rows == 0) return;
  check(grad.rows < int64_t{1} << 31, "embed_backward of ", grad.rows, " rows");
  const EmbedScratch at(task, workspace);
  const KeyList sorted = prepare_sort(task, at, work);
  const auto sum = [&]<class Rows, class Table>(Rows rows, Table table) {
    const SumShape shape{at.count, int(at.chunk), int(grad.cols / Rows::kWidth),
                         sorted,   at.head,       at.tail};
    const int slices = shape.slices();
    then_launch(work, at.chunks * slices, kSumThreads, 0, "launch of sum_runs",
                sum_runs_kernel<Rows, Table>, rows, table, shape, slices);
    then_launch(work, at.chunks * slices, kSumThreads, 0, "launch of join_runs",
                join_runs_kernel<Table>, table, shape, slices);
  };
  if (!fit_eights({grad, into})) return sum(Ones(grad), Ones(into));
  is_bf16(grad) ? sum(WideBf16(grad), WideFloats(into)) : sum(WideFloats(grad), WideFloats(into));
}

}  // namespace longnet
