"""The four papers this project follows, table by table and figure by figure, made by this system.

    python -m verbatim_attn.papers                       # every table and figure, and its state
    python -m verbatim_attn.papers dash:fig8 --device cuda --json dash_fig8.json --page fig8.html

It runs the commands that measure (bench, plan, tune, train_lm) and times nothing itself. What was
made is docs/papers.md; docs/papers has the numbers behind its lines.
"""
