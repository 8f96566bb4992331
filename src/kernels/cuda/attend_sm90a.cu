// The loop of group_tile.h on a device: TMA, mbarriers and wgmma, compiled for sm_90a alone.
//
// PTX ISA 8.x: wgmma (9.7.15), cp.async.bulk.tensor (9.7.9.27), mbarrier (9.7.13.15), setmaxnreg
// (9.7.19.5), fence.proxy.tensormap (9.7.13.7).
#include "core/cuda/cuda_check.h"
#include "kernels/cuda/attend_device.cuh"
#include "kernels/cuda/group_launch.h"
#include "kernels/cuda/group_shapes.h"
#include "kernels/cuda/group_tile.h"

namespace longnet {
namespace {

// Operand lists of wgmma: accumulators of 8 columns each.
#define LONGNET_ACC(n) \
  "+f"(c[n][0].value), "+f"(c[n][1].value), "+f"(c[n][2].value), "+f"(c[n][3].value)
#define LONGNET_ACC4(n) LONGNET_ACC(n), LONGNET_ACC(n + 1), LONGNET_ACC(n + 2), LONGNET_ACC(n + 3)
#define LONGNET_ACC8 LONGNET_ACC4(0), LONGNET_ACC4(4)
#define LONGNET_ACC16 LONGNET_ACC8, LONGNET_ACC4(8), LONGNET_ACC4(12)
#define LONGNET_D32                                                                                \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25," \
  "%26,%27,%28,%29,%30,%31"
#define LONGNET_D64                                                                               \
  LONGNET_D32                                                                                     \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54," \
  "%55,%56,%57,%58,%59,%60,%61,%62,%63"

// Element: __nv_bfloat16 or __half.
template <class Element>
struct DeviceGroupWarp : DeviceWarp<Element> {
  template <class T>
  using Reg = typename DeviceWarp<Element>::template Reg<T>;

  // The compiler may not move what touches these registers across this point.
  template <int n>
  __device__ __forceinline__ void settle(Reg<float> (&c)[n][4]) const {
    LONGNET_UNROLL
    for (int i = 0; i < n; ++i) asm volatile("" : LONGNET_ACC(i)::"memory");
  }
  template <int n>
  __device__ __forceinline__ void fence(Reg<float> (&c)[n][4]) const {
    settle(c);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  }
  // A branch that is never taken (sums are not negative), uniform over the warp: ptxas 13.0 moves a
  // wgmma.wait_group up across anything else.
  __device__ __forceinline__ void hold(const Reg<float>& x, const Reg<float>& y) const {
    if (__any_sync(0xFFFFFFFFu, fminf(x.value, y.value) < 0.0f)) asm volatile("trap;" ::: "memory");
  }
  __device__ __forceinline__ void commit() const {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  }
  template <int kPending>
  __device__ __forceinline__ void wait() const {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
  }
  __device__ __forceinline__ uint64_t descriptor(int byte, int leading) const {
    return matrix_descriptor(this->shared + uint32_t(byte), uint32_t(leading));
  }

  // C (64 x 128) = A (64 x 16) B (16 x 128) (+ C), both in shared memory.
  __device__ __forceinline__ void multiply(Reg<float> (&c)[16][4], uint64_t a, uint64_t b,
                                           bool add) const {
#define LONGNET_WGMMA(type)                                                         \
  asm volatile(                                                                     \
      "{\n .reg .pred p;\n setp.ne.b32 p, %66, 0;\n"                                \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {" LONGNET_D64 \
      "}, %64, %65, p, 1, 1, 0, 0;\n}"                                              \
      : LONGNET_ACC16                                                               \
      : "l"(a), "l"(b), "r"(int(add)))
    if constexpr (std::is_same_v<Element, __half>)
      LONGNET_WGMMA("f16");
    else
      LONGNET_WGMMA("bf16");
#undef LONGNET_WGMMA
  }
  // C += A (registers) B, whose columns lie along the rows of shared memory.
  __device__ __forceinline__ void multiply_add(Reg<float> (&c)[8][4], const Reg<uint32_t> (&a)[4],
                                               uint64_t b) const {
#define LONGNET_WGMMA(type)                                                                 \
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {" LONGNET_D32 \
               "}, {%32,%33,%34,%35}, %36, 1, 1, 1, 1;"                                     \
               : LONGNET_ACC8                                                               \
               : "r"(a[0].value), "r"(a[1].value), "r"(a[2].value), "r"(a[3].value), "l"(b))
    if constexpr (std::is_same_v<Element, __half>)
      LONGNET_WGMMA("f16");
    else
      LONGNET_WGMMA("bf16");
#undef LONGNET_WGMMA
  }
  __device__ __forceinline__ void multiply_add(Reg<float> (&c)[16][4], const Reg<uint32_t> (&a)[4],
                                               uint64_t b) const {
#define LONGNET_WGMMA(type)                                                                  \
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {" LONGNET_D64 \
               "}, {%64,%65,%66,%67}, %68, 1, 1, 1, 1;"                                      \
               : LONGNET_ACC16                                                               \
               : "r"(a[0].value), "r"(a[1].value), "r"(a[2].value), "r"(a[3].value), "l"(b))
    if constexpr (std::is_same_v<Element, __half>)
      LONGNET_WGMMA("f16");
    else
      LONGNET_WGMMA("bf16");
#undef LONGNET_WGMMA
  }
};

// Barriers of a block, behind its tiles.
template <class Shape>
struct Barriers {
  uint32_t shared;

  __device__ __forceinline__ uint32_t at(int barrier) const {
    return shared + uint32_t(Shape::kBarrierOffset + 8 * barrier);
  }
  __device__ void init(int barrier, int arrivals) const {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at(barrier)), "r"(arrivals)
                 : "memory");
  }
  __device__ __forceinline__ void wait(int barrier, int parity) const {
    uint32_t done;
    do {
      asm volatile(
          "{\n .reg .pred p;\n mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
          " selp.u32 %0, 1, 0, p;\n}"
          : "=r"(done)
          : "r"(at(barrier)), "r"(parity)
          : "memory");
    } while (done == 0);
  }
};

template <class Shape>
struct DeviceProducer : Barriers<Shape> {
  const char* maps;
  int known_q = -1, known_k = -1, known_v = -1;  // views whose maps were fenced

  __device__ __forceinline__ void expect(int barrier, int bytes) const {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(this->at(barrier)),
                 "r"(bytes)
                 : "memory");
  }
  __device__ __forceinline__ void load(Operand operand, const ViewPlace& from, int dim, int row,
                                       int into, int barrier) {
    const char* const map = maps + int64_t{from.view} * 128;
    int& known = operand == Operand::kQuery ? known_q
                 : operand == Operand::kKey ? known_k
                                            : known_v;
    if (known != from.view) {  // the host wrote it: nothing older may be cached
      asm volatile("fence.proxy.tensormap::generic.acquire.sys [%0], 128;" ::"l"(map) : "memory");
      known = from.view;
    }
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
        "[%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(this->shared + uint32_t(into)),
        "l"(map), "r"(this->at(barrier)), "r"(dim), "r"(row), "r"(from.at[0]), "r"(from.at[1]),
        "r"(from.at[2])
        : "memory");
  }
};

template <class Shape, class Element>
struct DeviceGroup : Barriers<Shape> {
  GroupRows<Shape, DeviceGroupWarp<Element>> rows;

  __device__ __forceinline__ void begin(int first_row) {
    DeviceGroupWarp<Element> warp;
    warp.shared = this->shared;
    rows.begin(warp, first_row + int(threadIdx.x % 128 / 32) * 16);
  }
  template <class F>
  __device__ __forceinline__ void warps(F f) {
    f(rows);
  }
  __device__ __forceinline__ void arrive(int barrier) const {
    if (threadIdx.x % 32 == 0)
      asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(this->at(barrier)) : "memory");
  }
  // Named barriers 1 ... kGroups: two warpgroups, one that waits for its turn and one that passes it.
  __device__ __forceinline__ void take_turn(int index) const {
    asm volatile("barrier.sync %0, 256;" ::"r"(1 + index) : "memory");
  }
  __device__ __forceinline__ void pass_turn(int index) const {
    const int next = index + 1 == Shape::kGroups ? 0 : index + 1;
    asm volatile("barrier.arrive %0, 256;" ::"r"(1 + next) : "memory");
  }
};

template <class Shape, class Element>
__global__ void __launch_bounds__(Shape::kThreads, 1)
    attend_group_kernel(const __grid_constant__ GroupInputs in) {
  extern __shared__ unsigned char memory[];
  const uint32_t raw = uint32_t(__cvta_generic_to_shared(memory));
  const uint32_t shared = (raw + Shape::kAlignment - 1) / Shape::kAlignment * Shape::kAlignment;
  if (threadIdx.x == 0) {
    const Barriers<Shape> barriers{shared};
    barriers.init(Shape::kQFull, 1);
    barriers.init(Shape::kQEmpty, Shape::kArrivals);
    for (int stage = 0; stage < Shape::kStages; ++stage) {
      barriers.init(Shape::k_full(stage), 1);
      barriers.init(Shape::v_full(stage), 1);
      barriers.init(Shape::k_empty(stage), Shape::kArrivals);
      barriers.init(Shape::v_empty(stage), Shape::kArrivals);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  __syncthreads();
  const int group = __shfl_sync(0xFFFFFFFFu, int(threadIdx.x) / 128, 0);  // one per warp: says it
  if (group == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Shape::kProducerRegisters));
    if (threadIdx.x == 0) {
      DeviceProducer<Shape> producer{{shared}, static_cast<const char*>(in.maps)};
      produce<Shape>(producer, in, int(blockIdx.x));
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Shape::kConsumerRegisters));
    DeviceGroup<Shape, Element> consumer;
    consumer.shared = shared;
    if (Shape::kTakeTurns && group == Shape::kGroups)
      consumer.pass_turn(group - 1);  // to the first
    consume<Shape>(consumer, in, int(blockIdx.x), group - 1);
  }
}

template <class Shape, class Element>
void launch_groups(const GroupInputs& inputs, int blocks, const Stream& stream) {
  if (blocks == 0) return;
  constexpr int kBytes = Shape::kSharedBytes + Shape::kAlignment;  // it may begin anywhere
  const auto kernel = attend_group_kernel<Shape, Element>;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
             "shared memory of the attention kernel");
  kernel<<<unsigned(blocks), Shape::kThreads, kBytes, stream.handle()>>>(inputs);
  check_cuda(cudaGetLastError(), "launch of the attention kernel");
}

template <class Shape, class Element = __nv_bfloat16>
constexpr GroupLauncher launcher(std::string_view name) {
  return {name,
          Shape::kDim,
          std::is_same_v<Element, __half> ? DeviceElement::kFloat16 : DeviceElement::kBFloat16,
          Shape::kRows,
          Shape::kKeys,
          launch_groups<Shape, Element>};
}

constexpr GroupLauncher kLaunchers[] = {
    launcher<Group64>("192x128-4t"),         launcher<Group128>("128x128-3t"),
    launcher<Group64, __half>("192x128-4t"), launcher<Group128, __half>("128x128-3t"),
#ifdef LONGNET_CUDA_VARIANTS
    launcher<Group64Free>("192x128-4"),      launcher<Group64Two>("128x128-4t"),
    launcher<Group64TwoFree>("128x128-4"),   launcher<Group128Free>("128x128-3"),
#endif
};

}  // namespace

std::span<const GroupLauncher> group_launchers() { return kLaunchers; }

}  // namespace longnet
