// Memory of the fake device: host memory that is known by address, NaN where nothing was
// written.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "fakegpu/machine.hpp"

using namespace trireme::fakegpu;

namespace trireme::fakegpu {
namespace {

thread_local cudaError_t last_error = cudaSuccess;
thread_local int current_device = 0;  // as CUDA: a new thread is on device 0
constexpr int devices = 2;

struct Memory {
  std::mutex mutex;
  std::map<const std::byte*, size_t> device, locked;
  size_t used = 0;
  size_t limit = size_t{1} << 30;
};
Memory& memory() {
  static auto* memory = new Memory;
  return *memory;
}

bool inside(const std::map<const std::byte*, size_t>& ranges, const void* data, size_t bytes) {
  const auto* first = static_cast<const std::byte*>(data);
  auto next = ranges.upper_bound(first);
  if (next == ranges.begin()) return false;
  --next;
  return first + bytes <= next->first + next->second;
}

}  // namespace

cudaError_t fail(cudaError_t error) { return last_error = error; }

bool on_device(const void* data, size_t bytes) {
  const std::lock_guard lock(memory().mutex);
  return inside(memory().device, data, bytes);
}

int64_t bytes_at(const void* data) {
  const std::lock_guard lock(memory().mutex);
  const auto found = memory().device.find(static_cast<const std::byte*>(data));
  return found == memory().device.end() ? 0 : static_cast<int64_t>(found->second);
}

void poison(void* data, size_t bytes) { std::memset(data, 0xff, bytes); }

cudaError_t allocate(void** data, size_t bytes) {
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  if (bytes == 0 || bytes > m.limit - m.used)
    return fail(bytes == 0 ? cudaErrorInvalidValue : cudaErrorMemoryAllocation);
  constexpr size_t page = 4096;  // what windows of NCCL begin at
  const size_t alignment = bytes < page ? 256 : page;
  *data = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  poison(*data, bytes);
  m.device[static_cast<std::byte*>(*data)] = bytes;
  m.used += bytes;
  return cudaSuccess;
}

bool release(void* data) {
  Memory& m = memory();
  size_t bytes = 0;
  {
    const std::lock_guard lock(m.mutex);
    const auto found = m.device.find(static_cast<std::byte*>(data));
    if (found == m.device.end()) return false;
    bytes = found->second;
    m.device.erase(found);
    m.used -= bytes;
  }
  {
    const std::lock_guard lock(machine().mutex);
    machine().order.end(data, bytes, machine().host);
  }
  settle();  // the finding is enough: nothing shall crash
  std::free(data);
  return true;
}

void set_memory(size_t bytes) {
  const std::lock_guard lock(memory().mutex);
  memory().limit = bytes;
}
size_t device_bytes() {
  const std::lock_guard lock(memory().mutex);
  return memory().used;
}
size_t locked_ranges() {
  const std::lock_guard lock(memory().mutex);
  return memory().locked.size();
}
size_t locked_bytes() {
  const std::lock_guard lock(memory().mutex);
  size_t sum = 0;
  for (const auto& [data, bytes] : memory().locked) sum += bytes;
  return sum;
}
void set_bus_id(const std::string& name) {
  current_device = devices - 1;
  const std::lock_guard lock(machine().mutex);
  machine().device = current_device;
  machine().bus_id = name;
}

void hide_peers(bool hidden) {
  const std::lock_guard lock(machine().mutex);
  machine().hides_peers = hidden;
}

}  // namespace trireme::fakegpu

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorHostMemoryAlreadyRegistered:
      return "part or all of the requested memory range is already mapped";
    case cudaErrorHostMemoryNotRegistered:
      return "pointer does not correspond to a registered memory region";
    default: return "an error that the fake GPU has no words for";
  }
}

cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= devices) return fail(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* name, int length, int device) {
  const std::lock_guard lock(machine().mutex);
  if (device != machine().device) return fail(cudaErrorInvalidDevice);
  std::snprintf(name, static_cast<size_t>(length), "%s", machine().bus_id.c_str());
  return cudaSuccess;
}

// Another process's device is visible, unless a test hides it.
cudaError_t cudaDeviceGetByPCIBusId(int* device, const char* name) {
  const std::lock_guard lock(machine().mutex);
  if (name == machine().bus_id) {
    *device = machine().device;
    return cudaSuccess;
  }
  if (machine().hides_peers) return fail(cudaErrorInvalidDevice);
  *device = 1 - machine().device;
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int /*device*/, int /*peer*/) {
  *can = 1;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** data, size_t bytes) { return allocate(data, bytes); }

// Waits for all that the device does, as CUDA does.
cudaError_t cudaFree(void* data) {
  drain_all();
  return data == nullptr || release(data) ? cudaSuccess : fail(cudaErrorInvalidValue);
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total) {
  const std::lock_guard lock(memory().mutex);
  *total = memory().limit;
  *free_bytes = memory().limit - memory().used;
  return cudaSuccess;
}

// The host does not wait for it, as the run time's documentation says of device memory: an
// operation of the legacy default stream.
cudaError_t cudaMemset(void* data, int value, size_t bytes) {
  return cudaMemsetAsync(data, value, bytes, nullptr);
}

cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t stream) {
  if (!on_device(data, bytes)) return fail(cudaErrorInvalidValue);
  enqueue(stream, {.what = "memset", .ranges = {writes(data, bytes)}, .body = [=] {
                     std::memset(data, value, bytes);
                   }});
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  const bool both = on_device(to, bytes) && on_device(from, bytes);
  if (kind != cudaMemcpyDefault && (kind != cudaMemcpyDeviceToDevice || !both))
    return fail(cudaErrorInvalidValue);
  enqueue(stream, {.what = "copy", .ranges = {reads(from, bytes), writes(to, bytes)}, .body = [=] {
                     poison(to, bytes);
                     std::this_thread::yield();
                     std::memcpy(to, from, bytes);
                   }});
  return cudaSuccess;
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                              size_t bytes, size_t rows, cudaMemcpyKind kind, cudaStream_t stream) {
  if (kind != cudaMemcpyDefault || bytes > to_pitch || bytes > from_pitch)
    return fail(cudaErrorInvalidValue);
  const auto row = [](auto* base, size_t pitch, size_t r) {
    return reinterpret_cast<std::byte*>(const_cast<void*>(static_cast<const void*>(base))) +
           r * pitch;
  };
  std::vector<Range> ranges;
  for (size_t r = 0; r < rows; ++r) {
    ranges.push_back(reads(row(from, from_pitch, r), bytes));
    ranges.push_back(writes(row(to, to_pitch, r), bytes));
  }
  enqueue(stream, {.what = "copy of rows", .ranges = std::move(ranges), .body = [=] {
                     for (size_t r = 0; r < rows; ++r) poison(row(to, to_pitch, r), bytes);
                     std::this_thread::yield();
                     for (size_t r = 0; r < rows; ++r)
                       std::memcpy(row(to, to_pitch, r), row(from, from_pitch, r), bytes);
                   }});
  return cudaSuccess;
}

cudaError_t cudaHostRegister(void* data, size_t bytes, unsigned int) {
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  if (bytes == 0) return fail(cudaErrorInvalidValue);
  const bool taken = !m.locked.emplace(static_cast<std::byte*>(data), bytes).second;
  return taken ? fail(cudaErrorHostMemoryAlreadyRegistered) : cudaSuccess;
}

cudaError_t cudaHostUnregister(void* data) {
  const std::lock_guard lock(memory().mutex);
  return memory().locked.erase(static_cast<std::byte*>(data)) == 1
             ? cudaSuccess
             : fail(cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned int flags) {
  constexpr size_t page = 4096;
  *data = std::aligned_alloc(page, (bytes + page - 1) / page * page);
  if (*data == nullptr) return fail(cudaErrorMemoryAllocation);
  return cudaHostRegister(*data, bytes, flags);
}

// Waits for all that the device does: copies may still use it.
cudaError_t cudaFreeHost(void* data) {
  drain_all();
  if (cudaHostUnregister(data) != cudaSuccess) return fail(cudaErrorInvalidValue);
  std::free(data);
  return cudaSuccess;
}
