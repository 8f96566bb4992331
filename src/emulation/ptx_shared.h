// Shared memory of a block, and who may touch it when.
//
// Every access is held against those before it: two of different warps, one of them writing, must
// be ordered by a barrier between them, or it is a race, whatever the values say (vector clocks, as
// in FastTrack, Flanagan and Freund 2009). A bulk copy writes at any time between its issue and its
// barrier's completion; the copies of one barrier are an agent of their own.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace longnet::ptx {

// Vector clock: for each agent (a warp, or a barrier's bulk copies) the time up to which its
// accesses are known.
class VectorClock {
 public:
  uint32_t of(int agent) const { return size_t(agent) < done_.size() ? done_[size_t(agent)] : 0; }
  void set(int agent, uint32_t done);
  void join(const VectorClock& other);

 private:
  std::vector<uint32_t> done_;
};

class SharedMemory {
 public:
  SharedMemory(int64_t bytes, int warps);

  // Places to read from, or write to. Throw Error outside of the memory, and for a race.
  std::byte* read(uint64_t at, int64_t bytes, int warp);
  std::byte* write(uint64_t at, int64_t bytes, int warp);
  // By a bulk copy on barrier `number` that began when `then` was known.
  std::byte* write_bulk(uint64_t at, int64_t bytes, int number, const VectorClock& then);

  const VectorClock& clock(int warp) const { return clocks_[size_t(warp)]; }
  // Returns the warp's clock: who acquires it comes after the warp's accesses so far.
  VectorClock release(int warp);
  VectorClock release_bulk(int number, const VectorClock& then);
  void acquire(int warp, const VectorClock& clock) { clocks_[size_t(warp)].join(clock); }

 private:
  // The last write to `grain_` bytes: the agent, and its time. The last reads are in `reads_`.
  struct Cell {
    int writer = -1;
    uint32_t written = 0;
  };
  std::byte* place(uint64_t at, int64_t bytes);
  template <class F>
  void for_cells(uint64_t at, int64_t bytes, F f) const;
  [[noreturn]] void race(uint64_t at, int agent, const char* does, int other,
                         const char* did) const;
  void record_write(uint64_t at, int64_t bytes, int agent, uint32_t now, const VectorClock& known);

  int warps_;
  int64_t grain_;  // bytes of a cell
  std::vector<std::byte> memory_;
  std::vector<Cell> cells_;
  std::vector<uint32_t> reads_;  // [cell][warp]
  std::vector<VectorClock> clocks_;
  std::map<int, uint32_t> bulk_copies_;  // that landed, by barrier
};

}  // namespace longnet::ptx
