"""A plugin for vLLM on CPU that turns its GPU mode on again: VLLM_COMPILE, whose graphs are compiled ahead of time.

WITHOUT_THE_FIX: as if our fingerprint did not exist. FUSES_NORMS: as if a pass that fuses norms were configured; the
CPU build lacks the real one, so one stands in for it which prints how many norms it finds and takes none.
"""

import os


def force():
    from vllm.compilation.passes.utility.fix_functionalization import FixFunctionalizationPass
    from vllm.config import CompilationConfig, CompilationMode
    from vllm.platforms.cpu import CpuPlatform

    configure = CpuPlatform.check_and_update_config.__func__
    if getattr(configure, "forced", False):
        return

    def keep(cls, config):
        configure(cls, config)
        if config.compilation_config.mode == CompilationMode.DYNAMO_TRACE_ONCE:
            config.compilation_config.mode = CompilationMode.VLLM_COMPILE
            config.compilation_config.ir_enable_torch_wrap = True
            config.compilation_config.compile_sizes = []
            # these passes match operators that a CPU build lacks
            config.compilation_config.pass_config.fuse_norm_quant = bool(os.environ.get("FUSES_NORMS"))
            config.compilation_config.pass_config.fuse_act_quant = False
        if os.environ.get("WITHOUT_THE_FIX"):
            import vllm

            vllm.envs.environment_variables.pop("VLLM_FK_PLUGIN_FINGERPRINT", None)

    keep.forced = True
    CpuPlatform.check_and_update_config = classmethod(keep)
    FixFunctionalizationPass.__call__ = lambda self, graph: None  # it knows CUDA's operators only
    if os.environ.get("FUSES_NORMS"):
        _stand_in()
    if os.environ.get("WITHOUT_THE_FIX"):
        # vLLM 0.26 hashes which custom operators were enabled, which differs by accident; 0.33 hashes it no more.
        hashed = CompilationConfig.compute_hash

        def compute_hash(self):
            kept = self.enabled_custom_ops.copy(), self.disabled_custom_ops.copy()
            self.enabled_custom_ops.clear()
            self.disabled_custom_ops.clear()
            try:
                return hashed(self)
            finally:
                self.enabled_custom_ops.update(kept[0])
                self.disabled_custom_ops.update(kept[1])

        CompilationConfig.compute_hash = compute_hash


def _stand_in():
    from vllm.compilation.passes import pass_manager
    from vllm.compilation.passes.inductor_pass import InductorPass

    class Finds(InductorPass):
        def __init__(self, config):
            pass

        def __call__(self, graph):
            norms = [node for node in graph.nodes if "vllm_ir" in str(node.target) and "rms_norm" in str(node.target)]
            print(f"the fusion pass found {len(norms)} norms", flush=True)

    pass_manager.RMSNormQuantFusionPass = Finds
