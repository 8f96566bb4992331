// For tests: plays a block of the cuda_sm90a kernel on the CPU, a thread for the loading warp and
// one for each consumer warpgroup.
//
// wgmma, TMA, matrix descriptors and mbarriers do what the PTX manual says they do; nothing is
// taken from the index functions under test. Shared memory starts as NaN. Products are done either
// when they are issued or when they are waited for, copies at once or when somebody waits for them:
// a wait that is missing gives wrong numbers. The sanitizer for threads sees whoever overwrites a
// tile that is still being read.
#pragma once
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

#include "kernels/cuda/group_tile.h"
#include "kernels/cuda/tensor_views.h"
#include "kernels/cuda/testing/emulated_block.h"

namespace longnet {

// Byte of shared memory that byte `at` of a 128-byte swizzled tile lies in: address bits 4 to 6 are
// exchanged (xor) with bits 7 to 9.
inline uint32_t swizzled(uint32_t at) { return at ^ (at >> 7 & 7) << 4; }

// Shared memory and barriers of a block. A thread that waits for too long means a deadlock.
class EmulatedShared {
 public:
  EmulatedShared(int bytes, int barriers, int turns)
      : memory_(size_t(bytes / 2), 0x7FFF),
        barriers_(static_cast<size_t>(barriers)),
        turns_(static_cast<size_t>(turns)) {
    if (turns > 0) turns_[0] = 1;
  }
  void init(int barrier, int arrivals) {
    barriers_.at(size_t(barrier)) = {.arrivals = arrivals, .pending = arrivals};
  }
  uint16_t& at(uint32_t byte) { return memory_.at(byte / 2); }

  void arrive(int barrier, int arrivals, int64_t expected_bytes) {
    change([&] {
      Barrier& b = barriers_.at(size_t(barrier));
      b.pending -= arrivals;
      b.bytes += expected_bytes;
      check(b.pending >= 0, "barrier ", barrier, " has ", -b.pending, " arrivals too many");
      complete(b);
    });
  }
  void landed(int barrier, int64_t bytes) {
    change([&] {
      Barrier& b = barriers_.at(size_t(barrier));
      b.bytes -= bytes;
      complete(b);
    });
  }
  // A copy that completes on `barrier`, done by whoever waits for it first.
  void copy_later(int barrier, std::function<void()> copy) {
    change([&] { barriers_.at(size_t(barrier)).copies.push_back(std::move(copy)); });
  }
  // Until the phase of this parity is complete. Phases count from 0; the one before it is complete.
  void wait(int barrier, int parity) {
    Barrier& b = barriers_.at(size_t(barrier));
    const auto done = [&] { return b.phase % 2 != parity; };
    for (;;) {
      std::vector<std::function<void()>> copies;
      until([&] { return done() || !b.copies.empty(); }, "barrier", barrier,
            [&] {
              if (!done()) copies.swap(b.copies);
            });
      if (copies.empty()) return;
      for (const auto& copy : copies) copy();
    }
  }
  void take_turn(int index) {
    until([&] { return turns_.at(size_t(index)) > 0; }, "turn", index,
          [&] { --turns_[size_t(index)]; });
  }
  void pass_turn(int index) {
    change([&] {
      int& next = turns_[size_t(index + 1) % turns_.size()];
      check(++next == 1, "warpgroup ", index, " passes a turn that was not taken");
    });
  }

 private:
  struct Barrier {
    int arrivals = 0, pending = 0, phase = 0;
    int64_t bytes = 0;
    std::vector<std::function<void()>> copies{};
  };
  static void complete(Barrier& b) {
    if (b.pending > 0 || b.bytes != 0) return;
    b.pending = b.arrivals;
    ++b.phase;
  }
  template <class F>
  void change(F f) {
    const std::scoped_lock lock(mutex_);
    f();
    changed_.notify_all();
  }
  template <class Ready, class Then>
  void until(Ready ready, const char* what, int index, Then then) {
    std::unique_lock lock(mutex_);
    check(changed_.wait_for(lock, std::chrono::seconds(60), ready), "a deadlock at ", what, " ",
          index);
    then();
  }

  std::vector<uint16_t> memory_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Barrier> barriers_;
  std::vector<int> turns_;
};

// Products that are not done yet, and those of them that were committed.
struct EmulatedProducts {
  bool late = false;
  std::vector<std::function<void()>> open;
  std::deque<std::vector<std::function<void()>>> groups;
};

// One warp of a consumer warpgroup: its rows of the warpgroup's products.
template <class Element>
class EmulatedGroupWarp : public EmulatedWarp<Element> {
 public:
  template <class T>
  using Reg = typename EmulatedWarp<Element>::template Reg<T>;
  using Queue = EmulatedProducts;
  EmulatedGroupWarp() = default;
  EmulatedGroupWarp(EmulatedShared* shared, Queue* queue, int index)
      : memory_(shared), queue_(queue), index_(index) {}

  template <size_t n>
  void fence(Reg<float> (&)[n][4]) const {}
  template <size_t n>
  void settle(Reg<float> (&)[n][4]) const {}
  void hold(const Reg<float>&, const Reg<float>&) const {}
  uint64_t descriptor(int byte, int leading) const {
    return matrix_descriptor(uint32_t(byte), uint32_t(leading));
  }
  // PTX ISA, wgmma m64nNk16: C (64 x N) = A (64 x 16) B (16 x N) (+ C), both in shared memory, rows
  // of K elements.
  template <size_t n>
  void multiply(Reg<float> (&c)[n][4], uint64_t a, uint64_t b, bool add) const {
    issue([this, &c, a, b, add] {
      product(
          c, add, [&](int row, int k) { return k_major(a, row, k); },
          [&](int k, int col) { return k_major(b, col, k); });
    });
  }
  // A from registers, laid out as in mma.m16n8k16; B with the columns along the rows.
  template <size_t n>
  void multiply_add(Reg<float> (&c)[n][4], const Reg<uint32_t> (&a)[4], uint64_t b) const {
    issue([this, &c, &a, b] {
      product(
          c, true,
          [&](int row, int k) {
            const int lane = row % 8 * 4 + k % 8 / 2, i = row % 16 / 8 + k / 8 * 2;
            return Element::value(uint16_t(a[i][size_t(lane)] >> 16 * (k & 1)));
          },
          [&](int k, int col) { return columns_along_rows(b, k, col); });
    });
  }
  void commit() const {
    queue_->groups.push_back(std::move(queue_->open));
    queue_->open.clear();
  }
  template <size_t kPending>
  void wait() const {
    for (; queue_->groups.size() > kPending; queue_->groups.pop_front())
      for (const auto& product : queue_->groups.front()) product();
  }

 private:
  // Fields of a matrix descriptor, in bytes.
  struct Tile {
    uint32_t start, leading, stride;
    explicit Tile(uint64_t d)
        : start(uint32_t(d & 0x3FFF) << 4),
          leading(uint32_t(d >> 16 & 0x3FFF) << 4),
          stride(uint32_t(d >> 32 & 0x3FFF) << 4) {
      check(d >> 62 == 1 && (d >> 49 & 7) == 0, "not a 128-byte swizzle with base offset 0");
    }
  };
  // 8 rows of 128 bytes follow each other; the next 8 are `stride` bytes on.
  float k_major(uint64_t descriptor, int row, int k) const {
    const Tile t(descriptor);
    return value(t.start + uint32_t(row / 8) * t.stride + uint32_t(row % 8) * 128 +
                 uint32_t(k) * 2);
  }
  // 8 k of 64 columns follow each other; the next 8 k are `stride`, the next columns `leading` on.
  float columns_along_rows(uint64_t descriptor, int k, int col) const {
    const Tile t(descriptor);
    return value(t.start + uint32_t(k / 8) * t.stride + uint32_t(k % 8) * 128 +
                 uint32_t(col / 64) * t.leading + uint32_t(col % 64) * 2);
  }
  float value(uint32_t at) const { return Element::value(memory_->at(swizzled(at))); }

  template <size_t n, class A, class B>
  void product(Reg<float> (&c)[n][4], bool add, A a, B b) const {
    std::vector<float> left(16 * 16), right(16 * n * 8);
    for (int row = 0; row < 16; ++row)
      for (int k = 0; k < 16; ++k) left[size_t(row * 16 + k)] = a(index_ * 16 + row, k);
    for (int k = 0; k < 16; ++k)
      for (int col = 0; col < int(n) * 8; ++col) right[size_t(k) * n * 8 + size_t(col)] = b(k, col);
    for (size_t tile = 0; tile < n; ++tile)
      for (size_t lane = 0; lane < 32; ++lane)
        for (size_t i = 0; i < 4; ++i) {
          const size_t row = lane / 4 + i / 2 * 8, col = tile * 8 + lane % 4 * 2 + i % 2;
          float sum = add ? c[tile][i][lane] : 0.0f;
          for (size_t k = 0; k < 16; ++k) sum += left[row * 16 + k] * right[k * n * 8 + col];
          c[tile][i][lane] = sum;
        }
  }
  template <class F>
  void issue(F f) const {
    if (queue_->late)
      queue_->open.emplace_back(f);
    else
      f();
  }

  EmulatedShared* memory_ = nullptr;
  Queue* queue_ = nullptr;
  int index_ = 0;
};

using EmulatedViews = std::function<TensorView(int)>;  // by index

template <class Shape>
class EmulatedProducer {
 public:
  EmulatedProducer(EmulatedShared& shared, EmulatedViews views, int64_t head_dim, bool late)
      : shared_(shared), views_(std::move(views)), head_dim_(head_dim), late_(late) {}
  void wait(int barrier, int parity) { shared_.wait(barrier, parity); }
  void expect(int barrier, int bytes) { shared_.arrive(barrier, 1, bytes); }
  // A box of 64 dims and the rows that fit the place; what is outside the view is zero.
  void load(Operand operand, const ViewPlace& from, int dim, int row, int into, int barrier) {
    const int rows = operand == Operand::kQuery ? Shape::kRows : Shape::kKeys;
    const auto copy = [=, this] {
      const TensorView view = views_(from.view);
      const auto* first = static_cast<const uint16_t*>(view.base.first);
      for (int k = 0; k < 3; ++k) first += from.at[k] * view.step[k];
      for (int i = 0; i < rows; ++i)
        for (int c = 0; c < 64; ++c) {
          const bool inside = row + i < view.base.rows && dim + c < head_dim_;
          shared_.at(swizzled(uint32_t(into + i * 128 + c * 2))) =
              inside ? first[(row + i) * view.base.row_stride + dim + c] : uint16_t{0};
        }
      shared_.landed(barrier, rows * 128);
    };
    if (late_)
      shared_.copy_later(barrier, copy);
    else
      copy();
  }

 private:
  EmulatedShared& shared_;
  EmulatedViews views_;
  int64_t head_dim_;
  bool late_;
};

template <class Shape, class Element>
class EmulatedGroup {
 public:
  EmulatedGroup(EmulatedShared& shared, bool late) : shared_(shared) {
    for (auto& queue : queues_) queue.late = late;
  }
  void begin(int first_row) {
    for (int w = 0; w < 4; ++w)
      rows_[size_t(w)].begin(EmulatedGroupWarp<Element>(&shared_, &queues_[size_t(w)], w),
                             first_row + 16 * w);
  }
  template <class F>
  void warps(F f) {
    for (auto& w : rows_) f(w);
  }
  void wait(int barrier, int parity) { shared_.wait(barrier, parity); }
  void arrive(int barrier) { shared_.arrive(barrier, 4, 0); }
  void take_turn(int index) { shared_.take_turn(index); }
  void pass_turn(int index) { shared_.pass_turn(index); }

 private:
  EmulatedShared& shared_;
  std::array<EmulatedProducts, 4> queues_;
  std::array<GroupRows<Shape, EmulatedGroupWarp<Element>>, 4> rows_;
};

struct EmulatedOrder {
  bool copies_land_late = false, products_late = false;
};

// All that block `block` does. `in` has host addresses.
template <class Shape, class Element = EmulatedBf16>
void emulate_group_block(const GroupInputs& in, const EmulatedViews& views, int block,
                         EmulatedOrder order) {
  EmulatedShared shared(Shape::kBarrierOffset, Shape::kBarriers,
                        Shape::kTakeTurns ? Shape::kGroups : 0);
  shared.init(Shape::kQFull, 1);
  shared.init(Shape::kQEmpty, Shape::kArrivals);
  for (int stage = 0; stage < Shape::kStages; ++stage) {
    shared.init(Shape::k_full(stage), 1);
    shared.init(Shape::v_full(stage), 1);
    shared.init(Shape::k_empty(stage), Shape::kArrivals);
    shared.init(Shape::v_empty(stage), Shape::kArrivals);
  }
  std::mutex mutex;
  std::string failure;
  const auto guarded = [&](auto body) {
    return std::thread([&, body] {
      try {
        body();
      } catch (const std::exception& e) {
        const std::scoped_lock lock(mutex);
        failure = e.what();
      }
    });
  };
  std::vector<std::thread> threads;
  EmulatedProducer<Shape> producer(shared, views, in.head_dim, order.copies_land_late);
  threads.push_back(guarded([&] { produce<Shape>(producer, in, block); }));
  for (int g = 0; g < Shape::kGroups; ++g)
    threads.push_back(guarded([&, g] {
      EmulatedGroup<Shape, Element> group(shared, order.products_late);
      consume<Shape>(group, in, block, g);
    }));
  for (std::thread& thread : threads) thread.join();
  check(failure.empty(), "block ", block, ": ", failure);
}

}  // namespace longnet
