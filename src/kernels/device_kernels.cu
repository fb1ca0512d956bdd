// The functors of row_functors.hpp on a GPU: by Kokkos' device space where the site's Kokkos has
// one, else by our launcher.
#include <stdexcept>
#include <string>

#include "kernels/draw_functors.hpp"
#include "kernels/head_functors.hpp"
#include "kernels/lane_kernels.hpp"
#include "kernels/paged_attention_functors.hpp"
#include "kernels/row_functors.hpp"
#include "trireme/kernels/device_kernels.hpp"

#if defined(TRIREME_KOKKOS_DEVICE)
#include "kernels/exec.hpp"
#else
#include "kernels/exec_cuda.cuh"
#endif

namespace trireme::kernels {
namespace {

constexpr int threads_per_row = 256;
constexpr int threads_per_range = 256;
constexpr int threads_per_chunk = 128;
constexpr int threads_per_join = 64;  // two elements of a head of 128 each
constexpr int threads_per_head_rows = head_rows_of_team * head_lanes;

#if defined(TRIREME_KOKKOS_DEVICE)
constexpr void (*use_stream)(void*) = nullptr;
#else
thread_local cudaStream_t stream_of_thread = nullptr;
void use_stream(void* stream) { stream_of_thread = static_cast<cudaStream_t>(stream); }
#endif

template <class Functor>
void start(const char* name, int64_t teams, int threads, const Functor& functor) {
#if defined(TRIREME_KOKKOS_DEVICE)
  if (teams > 0) exec::start_teams<Kokkos::DefaultExecutionSpace>(name, teams, threads, functor);
#else
  const cudaError_t error = exec::start_teams(teams, threads, functor, stream_of_thread);
  if (error != cudaSuccess)
    throw std::runtime_error(std::string("the GPU refused the kernel ") + name + ": " +
                             cudaGetErrorString(error));
#endif
}

template <class... T>
bool all_aligned(uintptr_t bytes, const T*... pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) % bytes == 0) && ...);
}

template <class... T>
bool rows_aligned(int64_t columns, const T*... rows) {
  return all_aligned(widest_bytes, rows...) && ((columns % widest<T> == 0) && ...);
}

int64_t ranges(int64_t count) { return (count + range_per_team - 1) / range_per_team; }

template <class T>
void rms_norm(const T* x, const T* weight, T* y, float* inverse_rms, int64_t rows, int64_t columns,
              float epsilon) {
  start("rms_norm", rows, threads_per_row,
        RmsNormRow<T>{x, weight, y, inverse_rms, columns, epsilon,
                      rows_aligned(columns, x, weight, y)});
}

template <class T>
void rms_norm_backward(const T* x, const T* weight, const T* dy, const float* inverse_rms, T* dx,
                       float* dweight, int64_t rows, int64_t columns, int64_t chunk_rows) {
  start("rms_norm_backward", (rows + chunk_rows - 1) / chunk_rows, threads_per_row,
        RmsNormBackwardRows<T>{x, weight, dy, inverse_rms, dx, dweight, rows, columns, chunk_rows,
                               rows_aligned(columns, x, weight, dy, dx) &&
                                   all_aligned(widest<T> * sizeof(float), dweight)});
}

template <class T>
void add_rms_norm(const T* x, const T* added, const T* weight, T* sum, T* y, int64_t rows,
                  int64_t columns, float epsilon) {
  start("add, rms_norm", rows, threads_per_row,
        RmsNormRow<T>{x, weight, y, nullptr, columns, epsilon,
                      rows_aligned(columns, x, added, weight, sum, y), added, sum});
}

template <class T>
void swiglu(const T* gate, const T* up, T* y, int64_t rows, int64_t columns, int64_t stride) {
  const bool aligned = all_aligned(widest_bytes, gate, up, y) &&
                       (rows == 1 || (stride % widest<T> == 0 && columns % widest<T> == 0));
  start("swiglu", rows * ranges(columns), range_per_team / widest<T>,
        SwiGluRange<T>{gate, up, y, columns, stride, aligned});
}

template <class T>
void swiglu_backward(const T* gate, const T* up, const T* dy, T* dgate, T* dup, int64_t count) {
  start("swiglu_backward", ranges(count), range_per_team / widest<T>,
        SwiGluBackwardRange<T>{gate, up, dy, dgate, dup, count,
                               all_aligned(widest_bytes, gate, up, dy, dgate, dup)});
}

template <class T>
void rope(const T* x, const int64_t* positions, const float* cos, const float* sin, T* y,
          int64_t tokens, int64_t heads, int64_t head_dim, float direction) {
  start("rope", tokens, threads_per_row,
        RotateToken<T>{x, positions, cos, sin, y, heads, head_dim, direction});
}

template <class T>
void keep_rows(const CacheRows<T>& rows) {
  constexpr int at_once = KeepRows<T>::at_once;
  const int64_t half = rows.head_dim / 2;
  const auto whole = [](auto... elements) { return ((elements % at_once == 0) && ...); };
  const bool aligned = whole(half, rows.q_stride, rows.k_stride, rows.v_stride) &&
                       all_aligned(at_once * sizeof(float), rows.cos, rows.sin) &&
                       all_aligned(at_once * sizeof(T), rows.q, rows.k, rows.v, rows.rotated,
                                   rows.keys, rows.values);
  const auto pieces = static_cast<int>(aligned ? half / at_once : half);
  const KeepRows<T> functor{rows, pieces < threads_per_chunk ? threads_per_chunk / pieces : 1,
                            aligned};
  start("keep rows", rows.rows * functor.teams_of_token(), threads_per_chunk, functor);
}

template <class T>
void adamw_of(const AdamWShard& s, T* compute, const AdamWFactors& f, int32_t* changed) {
  constexpr uintptr_t at_once = AdamWRange<T>::at_once;
  const bool aligned =
      all_aligned(at_once * sizeof(float), s.master, s.moment1, s.moment2, s.gradient) &&
      all_aligned(at_once * sizeof(T), compute);
  start("adamw", ranges(s.elements), threads_per_range,
        AdamWRange<T>{s.master, s.moment1, s.moment2, s.gradient, compute, changed, s.elements,
                      f.clip, f.decay, f.rate1, f.beta2, f.rate2, f.step_size, f.root_scale, f.eps,
                      aligned});
}

void adamw_on_device(const AdamWShard& shard, const AdamWStep& step, int32_t* changed) {
  const AdamWFactors factors(step);
  if (shard.compute_bf16 != nullptr) {
    adamw_of(shard, shard.compute_bf16, factors, changed);
  } else {
    adamw_of(shard, shard.compute_fp32, factors, changed);
  }
}

void scan_head(const HeadScan& scan) {
  const int64_t teams = (scan.chunk.rows + head_rows_of_team - 1) / head_rows_of_team;
  if (scan.chunk.bf16) {
    start("scan logits", teams, threads_per_head_rows, ScanHeadRows<uint16_t>{scan});
  } else {
    start("scan logits", teams, threads_per_head_rows, ScanHeadRows<float>{scan});
  }
}

template <class T>
void gradient_of(const HeadGradient& gradient) {
  const bool aligned =
      rows_aligned(gradient.chunk.columns, static_cast<const T*>(gradient.chunk.logits));
  start("gradient of logits", gradient.chunk.rows, threads_per_row,
        GradientHeadRow<T>{gradient, aligned});
}
void gradient_head(const HeadGradient& gradient) {
  gradient.chunk.bf16 ? gradient_of<uint16_t>(gradient) : gradient_of<float>(gradient);
}

template <template <class> class Functor>
void draws(const char* name, const DrawArguments& arguments) {
  if (arguments.bf16) {
    start(name, arguments.rows, threads_per_row, Functor<uint16_t>{arguments});
  } else {
    start(name, arguments.rows, threads_per_row, Functor<float>{arguments});
  }
}
void summarise_draws(const DrawArguments& arguments) {
  draws<SummariseRow>("summarise draws", arguments);
}
void choose_draws(const DrawArguments& arguments) { draws<ChooseRow>("choose draws", arguments); }

template <class T, int most_heads>
void attend_chunks(const PagedAttention& attention) {
  start("attend to chunks of pages", attention.chunks * attention.kv_heads, threads_per_chunk,
        AttendChunk<T, most_heads>{attention});
}
template <class T>
void attend(const PagedAttention& attention) {
  const int64_t group = attention.heads / attention.kv_heads;
  if (group == 1) {
    attend_chunks<T, 1>(attention);
  } else if (group == 2) {
    attend_chunks<T, 2>(attention);
  } else if (group <= 4) {
    attend_chunks<T, 4>(attention);
  } else {
    attend_chunks<T, 8>(attention);
  }
  start("join chunks of pages", attention.queries * attention.heads, threads_per_join,
        JoinChunks<T>{attention});
}
void attend_pages(const PagedAttention& attention) {
  attention.bf16 ? attend<uint16_t>(attention) : attend<float>(attention);
}

template <class T>
constexpr DeviceRows<T> rows_of{rms_norm<T>, rms_norm_backward<T>, add_rms_norm<T>,
                                swiglu<T>,   swiglu_backward<T>,   rope<T>,
                                keep_rows<T>};

#if defined(TRIREME_KOKKOS_DEVICE)
constexpr const char* launched_by = "Kokkos' device space";
#else
constexpr const char* launched_by = "CUDA";
#endif
constexpr DeviceKernels kernels_of_device{launched_by,
                                          rows_of<float>,
                                          rows_of<uint16_t>,
                                          adamw_on_device,
                                          ranges,
                                          {scan_head, gradient_head},
                                          {summarise_draws, choose_draws},
                                          attend_pages,
                                          use_stream};

}  // namespace

void enable_device_kernels() { set_device_kernels(&kernels_of_device); }

}  // namespace trireme::kernels
