#include "trireme/comm/ring_memory.hpp"

#include <algorithm>

namespace trireme::comm {

void RingMemory::add(Tenant& tenant, const Bytes& bytes, const Allocate& allocate) {
  const auto grows = [&](size_t part) { return bytes[part] > bytes_[part]; };
  if (grows(weights) || grows(gradients) || grows(received)) {
    if (owner_) owner_->leave();
    owner_ = nullptr;
    for (Tenant* other : tenants_) other->lose();
  }
  for (size_t part = 0; part < parts; ++part) {
    if (!grows(part)) continue;
    bytes_[part] = 0;
    memory_[part].reset();  // before the larger one: both together may not fit
    memory_[part] = allocate(bytes[part]);
    bytes_[part] = bytes[part];
  }
  tenants_.push_back(&tenant);
}

void RingMemory::remove(Tenant& tenant) {
  std::erase(tenants_, &tenant);
  if (owner_ == &tenant) owner_ = nullptr;
}

bool RingMemory::take(Tenant& tenant) {
  if (owner_ == &tenant) return false;
  if (owner_) {
    owner_->leave();
    ++turns_;
  }
  owner_ = &tenant;
  return true;
}

}  // namespace trireme::comm
