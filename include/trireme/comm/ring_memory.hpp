// Memory that the exchanges of a rank take turns in. Models that never run at the same time (actor,
// critic, reference, reward models) need one ring of two stages, as large as the largest of them
// asks for, instead of one each.
//
// An exchange takes the memory when it gathers, or asks for gradients, after another had it. By
// then the other must have released all its stages and finished its reduction, else InternalError:
// its pass would go on with foreign weights. Its gathered weights are lost; own slices are not in
// here. Ranks of one exchange agree on what they still hold without asking each other: where only
// some of them give the memory to another tenant (a reference on a part of the trainers), an update
// of all of them lies between, which forgets what was gathered. Not thread-safe: passes of a rank
// run one after the other.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace trireme::comm {

class RingMemory {
 public:
  enum Part : uint8_t {
    weights,
    gradients,
    received
  };  // gathered weights, fp32 gradients of stages, what others sent of them
  static constexpr size_t parts = 3;
  using Bytes = std::array<int64_t, parts>;
  // Zeroed memory, freed with the last copy of the pointer; throws UserError(out_of_memory).
  using Allocate = std::function<std::shared_ptr<std::byte>(int64_t bytes)>;

  // An exchange that has no other memory for stages. Lives until remove().
  class Tenant {
   public:
    virtual void leave() = 0;  // another takes the memory: finish pending transfers first
    virtual void lose() = 0;   // the memory is about to be freed for a larger one; after leave() if
                               // this tenant had it

   protected:
    ~Tenant() = default;
  };

  RingMemory() = default;
  RingMemory(const RingMemory&) = delete;

  // Enlarges what is too small for the newcomer, all at once: what cannot be had is an error before
  // training begins. All tenants of one memory allocate in the same place (host, or one device).
  void add(Tenant& tenant, const Bytes& bytes, const Allocate& allocate);
  void remove(Tenant& tenant);
  // From now on the memory is this tenant's; true where it was not before.
  bool take(Tenant& tenant);

  std::byte* data(Part part) const { return memory_[part].get(); }
  int64_t bytes(Part part) const { return bytes_[part]; }
  int64_t bytes() const { return bytes_[weights] + bytes_[gradients] + bytes_[received]; }
  int64_t turns() const { return turns_; }  // how often it went to another tenant

 private:
  std::vector<Tenant*> tenants_;
  Tenant* owner_ = nullptr;
  std::array<std::shared_ptr<std::byte>, parts> memory_;
  Bytes bytes_{};
  int64_t turns_ = 0;
};

}  // namespace trireme::comm
