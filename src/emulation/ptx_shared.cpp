#include <algorithm>

#include "core/check.h"
#include "emulation/ptx_block.h"

namespace longnet::ptx {
namespace {

// Neighbouring bytes of small arrays belong to different threads.
constexpr int64_t kSmall = 4096;

std::string name_of(int agent, int warps) {
  return agent < warps ? concat("warp ", agent) : concat("a bulk copy on barrier ", agent - warps);
}

}  // namespace

void VectorClock::set(int agent, uint32_t done) {
  if (done_.size() <= size_t(agent)) done_.resize(size_t(agent) + 1);
  done_[size_t(agent)] = done;
}

void VectorClock::join(const VectorClock& other) {
  if (done_.size() < other.done_.size()) done_.resize(other.done_.size());
  for (size_t i = 0; i < other.done_.size(); ++i) done_[i] = std::max(done_[i], other.done_[i]);
}

SharedMemory::SharedMemory(int64_t bytes, int warps)
    : warps_(warps),
      grain_(bytes <= kSmall ? 1 : 8),
      memory_(size_t(bytes), std::byte{0xFF}),
      cells_(size_t((bytes + grain_ - 1) / grain_)),
      reads_(cells_.size() * size_t(warps)),
      clocks_(size_t(warps)) {
  for (int w = 0; w < warps; ++w)
    clocks_[size_t(w)].set(w, 1);  // other warps have not seen its accesses yet
}

std::byte* SharedMemory::place(uint64_t at, int64_t bytes) {
  check(at <= memory_.size() && uint64_t(bytes) <= memory_.size() - at, "byte ", int64_t(at),
        " of ", memory_.size(), " of shared memory");
  return memory_.data() + at;
}

std::byte* SharedMemory::read(uint64_t at, int64_t bytes, int warp) {
  std::byte* const here = place(at, bytes);
  const VectorClock& known = clocks_[size_t(warp)];
  const uint32_t now = known.of(warp);
  for (const size_t cell : cells_of(at, bytes)) {
    const Cell& c = cells_[cell];
    if (c.writer >= 0 && c.writer != warp && c.written > known.of(c.writer))
      race(at, warp, "reads", c.writer, "writes");
    reads_[cell * size_t(warps_) + size_t(warp)] = now;
  }
  return here;
}

std::byte* SharedMemory::write(uint64_t at, int64_t bytes, int agent, uint32_t now,
                               const VectorClock& known) {
  std::byte* const here = place(at, bytes);
  for (const size_t cell : cells_of(at, bytes)) {
    Cell& c = cells_[cell];
    if (c.writer >= 0 && c.writer != agent && c.written > known.of(c.writer))
      race(at, agent, "overwrites", c.writer, "writes");
    const uint32_t* const reads = &reads_[cell * size_t(warps_)];
    for (int reader = 0; reader < warps_; ++reader)
      if (reads[reader] > known.of(reader) && reader != agent)
        race(at, agent, "overwrites", reader, "reads");
    c = {agent, now};
  }
  return here;
}

void SharedMemory::race(uint64_t at, int agent, const char* does, int other,
                        const char* did) const {
  throw Error(concat("a race at byte ", at, " of shared memory: ", name_of(agent, warps_), " ",
                     does, " what ", name_of(other, warps_), " ", did));
}

std::byte* SharedMemory::write(uint64_t at, int64_t bytes, int warp) {
  return write(at, bytes, warp, clock(warp).of(warp), clock(warp));
}

std::byte* SharedMemory::write_bulk(uint64_t at, int64_t bytes, int number,
                                    const VectorClock& then) {
  return write(at, bytes, warps_ + number, bulk_copies_[number] + 1, then);
}

VectorClock SharedMemory::release(int warp) {
  VectorClock& own = clocks_[size_t(warp)];
  const VectorClock known = own;
  own.set(warp, own.of(warp) + 1);
  return known;
}

VectorClock SharedMemory::release_bulk(int number, const VectorClock& then) {
  VectorClock known = then;
  known.set(warps_ + number, ++bulk_copies_[number]);
  return known;
}

}  // namespace longnet::ptx
