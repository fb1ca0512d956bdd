// Keys of a config.json that change the arithmetic of a model in ways that no block has. Reading
// refuses them; docs/user/models.md lists them.
#pragma once

#include <array>
#include <string_view>

namespace trireme::config {

struct RefusedKey {
  enum class When {
    present,  // with any value but null
    not_zero,
    yes,  // true
    no,   // false, where the architecture norms heads of q and k
  };
  const char* key;
  When when;
  std::string_view why;
  std::string_view instead = "";
};

inline constexpr std::array refused_keys{
    RefusedKey{"num_experts", RefusedKey::When::present, "mixtures of experts are not built"},
    RefusedKey{"num_local_experts", RefusedKey::When::present, "mixtures of experts are not built"},
    RefusedKey{"n_routed_experts", RefusedKey::When::present, "mixtures of experts are not built"},
    RefusedKey{"attention_dropout", RefusedKey::When::not_zero,
               "training here has no dropout of the model's own", "set it to 0"},
    RefusedKey{"resid_pdrop", RefusedKey::When::not_zero,
               "training here has no dropout of the model's own", "set it to 0"},
    RefusedKey{"embd_pdrop", RefusedKey::When::not_zero,
               "training here has no dropout of the model's own", "set it to 0"},
    RefusedKey{"rope_interleaved", RefusedKey::When::yes,
               "each architecture has its own pairs of elements"},
    RefusedKey{"use_bidirectional_attention", RefusedKey::When::yes, "attention here is causal"},
    RefusedKey{"post_norm", RefusedKey::When::yes, "each architecture has its own places of norms"},
    RefusedKey{"qk_norm", RefusedKey::When::no, "the architecture norms heads of q and k"},
};

}  // namespace trireme::config
