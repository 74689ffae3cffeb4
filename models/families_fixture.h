// Holds configurations of small models, for tests.
#pragma once

namespace espalier {

constexpr char kLlama[] =
    R"("architectures": ["LlamaForCausalLM"], "vocab_size": 16, "hidden_size": 8,
       "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2)";
constexpr char kDecoder[] =
    R"("vocab_size": 16, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2,
       "num_attention_heads": 2, "num_key_value_heads": 1)";
constexpr char kMixtral[] =
    R"("architectures": ["MixtralForCausalLM"], "vocab_size": 16, "hidden_size": 8,
       "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2,
       "num_key_value_heads": 1)";
constexpr char kMistral[] =
    R"("architectures": ["MistralForCausalLM"], "vocab_size": 16, "hidden_size": 8,
       "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2,
       "num_key_value_heads": 1)";
constexpr char kPhi3[] =
    R"("architectures": ["Phi3ForCausalLM"], "vocab_size": 16, "hidden_size": 8,
       "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2)";
constexpr char kBigCode[] =
    R"("architectures": ["GPTBigCodeForCausalLM"], "vocab_size": 16, "n_embd": 8, "n_head": 2)";
constexpr char kOpt[] =
    R"("architectures": ["OPTForCausalLM"], "vocab_size": 16, "hidden_size": 8, "ffn_dim": 12,
       "num_hidden_layers": 1, "num_attention_heads": 2)";
constexpr char kFalcon[] =
    R"("architectures": ["FalconForCausalLM"], "vocab_size": 16, "hidden_size": 8,
       "num_hidden_layers": 1, "num_attention_heads": 2)";
constexpr char kMpt[] =
    R"("architectures": ["MptForCausalLM"], "vocab_size": 16, "d_model": 8, "n_layers": 1,
       "n_heads": 2)";
constexpr char kGpt2[] =
    R"("architectures": ["GPT2LMHeadModel"], "vocab_size": 16, "n_embd": 8, "n_head": 2)";
constexpr char kGemma3[] =
    R"("architectures": ["Gemma3ForCausalLM"], "vocab_size": 16, "hidden_size": 8,
       "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2,
       "num_key_value_heads": 1, "head_dim": 4)";

}  // namespace espalier
